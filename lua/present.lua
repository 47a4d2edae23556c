#!lua flags=allow-oom
--- present: a worker shows itself to whoever lists the live ones; also when the server is full.
--
-- KEYS  worker  hash   what it says of itself
-- ARGV  ttl_ms  int    after which it counts as gone
-- ROWS  field   str
--       value   str
-- REPLY the number of fields
-- COST  O(rows)
for at = 1, rows do
  local field, value = row(at)
  redis.call('HSET', worker, field, value)
end
redis.call('PEXPIRE', worker, ttl_ms)
return rows
