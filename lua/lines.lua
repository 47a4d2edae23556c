#!lua flags=allow-oom
--- lines: append what runs say to the bounded logs of their tasks.
--
-- KEYS  clock   hash   of the shard
-- ARGV  now_ms  int    0 = ask the server
-- ROWS  id      str
--       fence   str    of the attempt
--       seq     int    of the line within its attempt, from 1; growing
--       text    str
-- REPLY a word a row: 'ok' (now or before), 'stale'
-- COST  O(rows)
-- @include lib/clock
-- @include lib/keys
local LINES_MAX = 200
local now, seen = read_clock(now_ms)
local reply, adding, last = {}, {}, {}
for at = 1, rows do
  local id, fence, seq, text = row(at)
  local v = redis.call('HMGET', TASK .. id, 'state', 'fence', 'lines', 'attempt')
  if v[1] ~= 'RUNNING' or v[2] ~= fence then
    reply[at] = 'stale'
  else
    reply[at] = 'ok'
    local of, said = string.match(v[3] or '', '^(%d+):(%d+)$')
    local before = last[id] or (of == fence and tonumber(said)) or 0
    if seq > before then
      last[id] = seq
      adding[#adding + 1] = { id = id, fence = fence, seq = seq, text = text, attempt = v[4] }
    end
  end
end

keep_clock(now, seen)
for _, line in ipairs(adding) do
  local key = LINES .. line.id
  local before = redis.call('XLEN', key)
  redis.call('XADD', key, 'MAXLEN', LINES_MAX, '*', 'ms', now, 'attempt', line.attempt, 'text', line.text)
  redis.call('HSET', TASK .. line.id, 'lines', line.fence .. ':' .. line.seq)
  if before < LINES_MAX then redis.call('HINCRBY', TASK .. line.id, 'extra', #line.text) end
end
for id in pairs(last) do redis.call('SPUBLISH', LIVE, id) end
return reply
