#!lua
--- submit: create tasks durably, each exactly once; hand over at once what is due and may start.
--
-- KEYS  clock         hash   of the shard
-- ARGV  now_ms        int    0 = ask the server
-- ROWS  id            str
--       lane          str    queue:priority:tenant:route
--       due           str    ms since the epoch, or '+ms' after now
--       payload       bytes
--       options       str    JSON of what is not default; may be empty
--       fingerprint   str    of a keyed command; empty without a key
--       expires_ms    opt    no first start after it
--       lease_ms      opt    when not the namespace's
-- REPLY now_ms, then (row, word) for each row not created: 'exists' the task is there (same
--       fingerprint, or no key: a replay), 'reused' its fingerprint differs, 'gone' retention took it
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/ready
local INLINE_MAX = 1024   -- a larger payload would cost the hash its compact encoding

local now, seen = read_clock(now_ms)
local reply, fresh, known = { now }, {}, {}

local function answer(row, word)
  reply[#reply + 1] = row
  reply[#reply + 1] = word
end

-- What stands where the new record would: nothing (nil), or the word that answers it.
local function found(id, fingerprint)
  local before = known[id] or redis.call('HMGET', TASK .. id, 'state', 'fingerprint')
  if before[1] then return (before[2] or '') == fingerprint and 'exists' or 'reused' end
  local stub = redis.call('GET', STUB .. id)
  if not stub then return nil end
  local until_ms, mark = string.match(stub, '^(%d+) (.*)$')
  if tonumber(until_ms) <= now then return nil end
  return mark == fingerprint and 'gone' or 'reused'
end

for at = 1, rows do
  local id, lane_text, due, payload, options, fingerprint, expires_ms, lease_ms = row(at)
  local lane, due_ms = lane_of(lane_text), due_at(due, now)
  if id == '' or not lane then return redis.error_reply('BADARG row ' .. at .. ': id or lane') end
  if not due_ms then return redis.error_reply('BADARG row ' .. at .. ': due') end
  local word = found(id, fingerprint)
  if word then
    answer(at, word)
  else
    known[id] = { 'PENDING', fingerprint }
    local fields = { 'due_ms', due_ms, 'lane', lane_text, 'created_ms', now }
    local task = { id = id, key = TASK .. id, lane = lane, due_ms = due_ms, fields = fields, expires_ms = expires_ms }
    local function keep(name, value)
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
    if #payload > INLINE_MAX then
      task.body = payload
      keep('body', #payload)
    elseif payload ~= '' then
      keep('payload', payload)
    end
    if options ~= '' then keep('options', options) end
    if fingerprint ~= '' then keep('fingerprint', fingerprint) end
    if expires_ms then keep('expires_ms', expires_ms) end
    if lease_ms then keep('lease_ms', lease_ms) end
    fresh[#fresh + 1] = task
  end
end

-- Straight to the stream only where nothing that is due waits, so that nobody is overtaken.
local waiting_ms = tonumber(redis.call('ZRANGE', LANES, 0, 0, 'WITHSCORES')[2])
local overtakes = (waiting_ms and waiting_ms <= now) or redis.call('EXISTS', BACKLOG) == 1
local room = {}
local function may_start(task)
  if overtakes or task.due_ms > now or (task.expires_ms and task.expires_ms <= now) then return false end
  local stream = task.lane.stream
  if not room[stream] then
    local open = is_live(task.lane.route, now) and not redis.call('ZSCORE', PARKED, stream)
      and redis.call('EXISTS', TURNS .. stream) == 0
    room[stream] = open and room_in(stream) or 0
  end
  room[stream] = room[stream] - 1
  return room[stream] >= 0
end

keep_clock(now, seen)
for _, task in ipairs(fresh) do
  if task.body then redis.call('SET', BODY .. task.id, task.body) end
  create(task, task.fields)
  if task.expires_ms then redis.call('ZADD', EXPIRY, task.expires_ms, task.id) end
  if may_start(task) then hand_over(task, now) else due_add(task.lane, task.id, task.due_ms) end
end
due_flush()
ready_flush()
tell(now)
return reply
