-- amend: what an edit changes in a record, given by the arguments lane, payload, options, expires,
-- lease, wants and concurrency: '' leaves a field as it is, '=' empties it, '=text' sets it. Shared by edit and redrive.
local amended, emptied = {}, {}

-- The name of an argument that cannot be read, or nil; the lane it shall have.
local function check_amendment(task)
  local to_lane = lane ~= '' and lane_of(lane) or task.lane
  if (lane ~= '' and not lane_of(lane)) or to_lane.tenant ~= tenant then return 'lane' end
  for name, text in pairs({ expires = expires, lease = lease }) do
    if text ~= '' and not string.match(text, '^=%d*$') then return name end
  end
  for name, text in pairs({ payload = payload, options = options, wants = wants, concurrency = concurrency }) do
    if text ~= '' and string.sub(text, 1, 1) ~= '=' then return name end
  end
  return nil, to_lane
end

local function amend_field(field, text)
  if text == '' then return end
  if text == '=' then
    emptied[#emptied + 1] = field
  else
    amended[#amended + 1] = field
    amended[#amended + 1] = string.sub(text, 2)
  end
end

-- Writes what is emptied; returns fields and values to be set along with the move.
local function amend(task, ...)
  amended = { ... }
  amend_field('options', options)
  amend_field('expires_ms', expires)
  amend_field('lease_ms', lease)
  amend_field('wants', wants)
  amend_field('concurrency', concurrency)
  if #concurrency > 1 then redis.call('SET', KEYED, '1') end
  if payload ~= '' then
    redis.call('DEL', BODY .. task.id)
    if #payload - 1 > INLINE_MAX then
      redis.call('SET', BODY .. task.id, string.sub(payload, 2))
      emptied[#emptied + 1] = 'payload'
      amended[#amended + 1] = 'body'
      amended[#amended + 1] = #payload - 1
    else
      emptied[#emptied + 1] = 'body'
      amend_field('payload', payload)
    end
  end
  if #emptied > 0 then redis.call('HDEL', task.key, unpack(emptied)) end
  return amended
end
