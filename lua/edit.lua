#!lua
--- edit: change a task that waits; one that was dispatched goes back into the index.
--
-- KEYS  clock       hash   of the shard
-- ARGV  now_ms      int    0 = ask the server
--       id          str
--       tenant      str    whose task it must be
--       version     opt    If-Match
--       lane        str    as it shall be; empty = unchanged
--       due         str    ms, or '+ms' after now; empty = unchanged
--       payload     str    '=bytes'; empty = unchanged
--       options     str    '=JSON'; empty = unchanged
--       expires     str    '=ms', '=' none; empty = unchanged
--       lease       str    '=ms', '=' none; empty = unchanged
--       op          str    names this call; the same one again is answered again
-- REPLY word, state, version: 'edited', 'missing', 'version', 'state' (it runs or has finished)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/waiting
local INLINE_MAX = 1024
local now, seen = read_clock(now_ms)
local task = read_waiting(id)
if not task or task.lane.tenant ~= tenant then return { 'missing' } end
if op == task.op then return { 'edited', task.state, task.version } end
if version and version ~= task.version then return { 'version', task.state, task.version } end
if task.state ~= 'PENDING' and task.state ~= 'QUEUED' then return { 'state', task.state, task.version } end
local to_lane, to_due = task.lane, task.due_ms
if lane ~= '' then to_lane = lane_of(lane) end
if not to_lane or to_lane.tenant ~= tenant then return redis.error_reply('BADARG lane') end
if due ~= '' then
  to_due = due_at(due, now)
  if not to_due then return redis.error_reply('BADARG due') end
end
local function value(text) return string.sub(text, 2) end
for name, text in pairs({ expires = expires, lease = lease }) do
  if text ~= '' and not string.match(text, '^=%d*$') then return redis.error_reply('BADARG ' .. name) end
end
for name, text in pairs({ payload = payload, options = options }) do
  if text ~= '' and string.sub(text, 1, 1) ~= '=' then return redis.error_reply('BADARG ' .. name) end
end

keep_clock(now, seen)
withdraw(task)
local set, gone = { 'lane', to_lane.text, 'due_ms', to_due, 'op', op }, {}
local function change(field, text)
  if text == '' then return end
  if text == '=' then
    gone[#gone + 1] = field
  else
    set[#set + 1] = field
    set[#set + 1] = value(text)
  end
end
change('options', options)
change('expires_ms', expires)
change('lease_ms', lease)
if payload ~= '' then
  redis.call('DEL', BODY .. id)
  if #payload - 1 > INLINE_MAX then
    redis.call('SET', BODY .. id, value(payload))
    gone[#gone + 1] = 'payload'
    set[#set + 1] = 'body'
    set[#set + 1] = #payload - 1
  else
    gone[#gone + 1] = 'body'
    change('payload', payload)
  end
end
if #gone > 0 then redis.call('HDEL', task.key, unpack(gone)) end
local from = task.lane
if task.state == 'QUEUED' then
  move(task, 'PENDING', unpack(set))
else
  task.version = task.version + 1
  redis.call('HSET', task.key, 'version', task.version, unpack(set))
end
transfer(task, from, to_lane)
if expires ~= '' then
  redis.call('ZREM', EXPIRY, id)
  if expires ~= '=' and redis.call('HEXISTS', task.key, 'attempt') == 0 then redis.call('ZADD', EXPIRY, value(expires), id) end
end
due_add(to_lane, id, to_due)
ack_flush()
due_flush()
tell(now)
return { 'edited', task.state, task.version }
