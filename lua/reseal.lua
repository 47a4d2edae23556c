#!lua
--- reseal: put other bytes for a body of a record, if it still holds those that were read.
--
-- KEYS  clock  hash   of the shard
-- ROWS  kind   str    task, schedule
--       id     str    of the task; of a schedule tenant:id
--       field  str    payload, result, checkpoint, options; of a schedule payload, options
--       old    bytes  as they were read
--       new    bytes
-- REPLY a word a row: 'resealed', 'changed' (it holds other bytes, or none, by now)
-- COST  O(bytes)
--
-- Nothing else changes: neither version nor state, and nobody is told. A payload stands in the record
-- or in a key of its own by its length, as when it was created.
-- @include lib/keys
local FIELDS = {
  task = { payload = true, result = true, checkpoint = true, options = true }, schedule = { payload = true, options = true },
}
local FINAL = { SUCCESS = true, FAILED = true, CANCELLED = true }

local function keys_of(kind, id)
  if kind == 'task' then return TASK .. id, BODY .. id end
  return shard .. ':schedule:' .. id, shard .. ':schedule:' .. id .. ':body'
end

for at = 1, rows do
  local kind, id, field, old, new = row(at)
  if id == '' or not (FIELDS[kind] and FIELDS[kind][field]) then return redis.error_reply('BADARG row ' .. at .. ': kind, id or field') end
  if old == '' or new == '' then return redis.error_reply('BADARG row ' .. at .. ': old or new') end
end

local function held(key, body_key, id, field)
  if field == 'checkpoint' then return redis.call('GET', CHECKPOINT .. id) end
  local v = redis.call('HMGET', key, field, 'body')
  if field == 'payload' and v[2] then return redis.call('GET', body_key) end
  return v[1]
end

local function put(key, body_key, id, field, new)
  if field == 'checkpoint' then
    redis.call('SET', CHECKPOINT .. id, new)
  elseif field == 'payload' and #new > INLINE_MAX then
    redis.call('SET', body_key, new)
    redis.call('HSET', key, 'body', #new)
    redis.call('HDEL', key, 'payload')
  else
    redis.call('HSET', key, field, new)
    if field == 'payload' then
      redis.call('HDEL', key, 'body')
      redis.call('DEL', body_key)
    end
  end
end

-- The bytes of a finished record are counted for its tenant, and those beside the hash in it.
local function recount(key, field, grown)
  if field == 'checkpoint' then redis.call('HINCRBY', key, 'extra', grown) end
  local v = redis.call('HMGET', key, 'state', 'lane')
  if FINAL[v[1]] then redis.call('HINCRBY', COUNTS, 'bytes:' .. lane_of(v[2]).tenant, grown) end
end

local reply = {}
for at = 1, rows do
  local kind, id, field, old, new = row(at)
  local key, body_key = keys_of(kind, id)
  local now_held = held(key, body_key, id, field)
  reply[at] = (now_held == old or now_held == new) and 'resealed' or 'changed'
  if now_held == old then
    put(key, body_key, id, field, new)
    if kind == 'task' and field ~= 'options' and #new ~= #old then recount(key, field, #new - #old) end
  end
end
return reply
