#!lua flags=allow-oom
--- deliver: make the deliveries of one message, each once; neither memory nor quotas refuse them.
--
-- KEYS  clock    hash   of the shard
-- ARGV  now_ms   int    0 = ask the server
--       tenant   str
-- ROWS  id       str    of the delivery: the same message to the same receiver has the same
--       options  str    JSON of its target and the like
--       payload  bytes
-- REPLY how many were made now
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
local lane = lane_of('notifications:normal:' .. tenant .. ':http')
if not lane then return redis.error_reply('BADARG tenant') end
local now, seen = read_clock(now_ms)
local made = 0

keep_clock(now, seen)
for at = 1, rows do
  local id, options, payload = row(at)
  local key = TASK .. id
  if redis.call('EXISTS', key, STUB .. id) == 0 then
    local field, value = 'payload', payload
    if #payload > INLINE_MAX then
      redis.call('SET', BODY .. id, payload)
      field, value = 'body', #payload
    end
    create(lane, id, key, 'due_ms', now, 'lane', lane.text, 'created_ms', now, 'options', options, field, value)
    due_add(lane, id, now)
    made = made + 1
  end
end
due_flush()
tell(now)
return made
