#!lua flags=allow-oom
--- put_record: write one versioned record of a hash of settings, if it is still the one that was read.
--
-- KEYS  home      hash   field → 'version value'
-- ARGV  field     str
--       expected  opt    its version; 0 = there is none; empty = whatever it is
--       value     bytes  empty = remove it
-- REPLY word, version: 'kept' (now or before), 'removed', 'version' (another one is stored), 'missing'
-- COST  O(1)
local stored = redis.call('HGET', home, field)
local version, text = string.match(stored or '', '^(%d+) (.*)$')
version = tonumber(version) or 0
local function is_same() return stored and text == value end
if value == '' then
  if not stored then return { 'missing', 0 } end
  if expected and expected ~= version then return { 'version', version } end
  redis.call('HDEL', home, field)
  return { 'removed', version }
end
-- The reply to this very write was lost: it is answered again.
if is_same() and (not expected or expected + 1 == version) then return { 'kept', version } end
if expected and expected ~= version then return { stored and 'version' or 'missing', version } end
redis.call('HSET', home, field, string.format('%.0f', version + 1) .. ' ' .. value)
return { 'kept', version + 1 }
