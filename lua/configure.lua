#!lua flags=allow-oom
--- configure: copy settings from their home record to this shard; the higher version stays.
--
-- KEYS  clock  hash   of the shard
-- ROWS  field  str
--       value  str    'version text', as in the home record
-- REPLY the number of fields that changed
-- COST  O(rows)
-- @include lib/keys
local changed, settings = {}, {}
for at = 1, rows do
  local field, value = row(at)
  local version = tonumber(string.match(value, '^(%d+) '))
  if not version then return redis.error_reply('BADARG row ' .. at .. ': value') end
  local stored = tonumber(string.match(redis.call('HGET', CONF, field) or '0 ', '^(%d+) ')) or 0
  if version > stored then
    changed[#changed + 1] = field
    changed[#changed + 1] = value
    settings[#settings + 1] = field
  end
end
if #changed == 0 then return 0 end
redis.call('HSET', CONF, unpack(changed))
-- The dispatcher looks again at what waited for it, and at what it limits.
for _, field in ipairs(settings) do redis.call('ZADD', FREED, 0, field) end
redis.call('SPUBLISH', WAKE, 'due 0')
return #changed / 2
