#!lua flags=allow-oom
--- allot: at the home of a limit: give the shards that want permits what is free, the earliest first.
--- The sum of what the shards have is never above the limit.
--
-- KEYS  clock      hash   of the home shard
-- ARGV  now_ms     int    0 = ask the server
--       limit      str    't/acme', 'q/mail', 'k/<hash>', 'p/acme'
--       capacity   int    permits there are; 0 = as it was
--       shards     int    that must have reported before anything is given; 0 = none need to
-- ROWS  number     int    of a shard
--       epoch      int    of the allotment it has
--       permits    int    it has
--       want       int    more; 0 = none
--       head_ms    int    due time of the earliest that waits there
-- REPLY 'ok' or 'report' (let every shard report first), then what to tell: {number, permits, epoch,
--       contended, short_ms} each
-- COST  O(shards)
--
-- An epoch grows with every change of permits made here. A shard that reports an older one has not heard of the
-- last: it is told again. One that reports the current one with fewer permits has given some back.
-- That others wait is no change: it comes with the epoch that the shard has, so that one whose row came late, and
-- has given its permits back since, is not given them anew. It is said again every AGAIN_MS, for whoever should have
-- told it may have died, and what was given may have become useless.
-- @include lib/clock
-- @include lib/keys
local PATIENCE_MS, SHORT_MS, AGAIN_MS = 30000, 1000, 5000
local now, seen = read_clock(now_ms)
local home = shard .. ':limit:' .. limit
local raw = redis.call('HGETALL', home)
local stored
local holders, waiters, telling, asking = {}, {}, {}, {}
for at = 1, #raw, 2 do
  local kind, number = string.match(raw[at], '^([aw])(%d+)$')
  local one, two, three = string.match(raw[at + 1], '^(%d+) (%d+) ?(%d*)$')
  if kind == 'a' then
    holders[number] = { permits = tonumber(one), epoch = tonumber(two), told_ms = tonumber(three) or 0 }
  elseif kind == 'w' and tonumber(three) + PATIENCE_MS > now then
    waiters[number] = { want = tonumber(one), head_ms = tonumber(two), at_ms = tonumber(three) }
  elseif raw[at] == 'capacity' then
    stored = tonumber(one)
  end
end

if capacity == 0 then capacity = stored or 0 end
-- What may have begun while another limit, or none, was in force is counted before anything is given.
local uncounted = stored and capacity ~= stored and rows < shards

for at = 1, rows do
  local number, epoch, permits, want, head_ms = row(at)
  if permits < 0 or want < 0 or number < 0 then return redis.error_reply('BADARG row ' .. at .. ': permits or want') end
  number = string.format('%.0f', number)
  local holder = holders[number]
  if not holder or epoch > holder.epoch then
    holders[number] = { permits = permits, epoch = epoch, told_ms = 0 }
  elseif epoch == holder.epoch then
    -- Under one epoch a shard only ever has fewer: what says more is older, and came late. Before it was
    -- told of anything it has what it uses.
    holder.permits = (epoch == 0 and math.max or math.min)(holder.permits, permits)
  end
  asking[number] = true
  waiters[number] = want > 0 and { want = want, head_ms = head_ms, at_ms = now } or nil
end

local known, total = 0, 0
for _, holder in pairs(holders) do
  known, total = known + 1, total + holder.permits
end
if uncounted then known, capacity = -1, stored end
local free = known >= shards and math.max(capacity - total, 0) or 0
local function change(number, permits)
  local holder = holders[number]
  holder.permits = permits
  holder.epoch = math.max(holder.epoch + 1, now)
  telling[number] = true
end

local order = {}
for number, waiter in pairs(waiters) do order[#order + 1] = { number, waiter } end
table.sort(order, function(one, two)
  if one[2].head_ms ~= two[2].head_ms then return one[2].head_ms < two[2].head_ms end
  return tonumber(one[1]) < tonumber(two[1])
end)
for _, pair in ipairs(order) do
  local number, waiter = pair[1], pair[2]
  local given = math.min(waiter.want, free)
  if given > 0 then
    holders[number] = holders[number] or { permits = 0, epoch = 0, told_ms = 0 }
    change(number, holders[number].permits + given)
    free, waiter.want = free - given, waiter.want - given
    if waiter.want == 0 then waiters[number] = nil end
  end
end

-- While somebody waits, those who have permits give back each one that becomes free.
local contended = next(waiters) ~= nil
for number, holder in pairs(holders) do
  if contended and now - holder.told_ms >= AGAIN_MS and (holder.permits > 0 or waiters[number]) then
    holder.told_ms = now
    if holder.epoch == 0 then change(number, holder.permits) end
    telling[number] = true
  elseif not contended and holder.told_ms > 0 and asking[number] then
    holder.told_ms = 0
  end
end

keep_clock(now, seen)
redis.call('DEL', home)
local set = {}
local function keep(name, ...)
  set[#set + 1] = name
  set[#set + 1] = string.format('%.0f %.0f %.0f', ...)
end
for number, holder in pairs(holders) do
  if holder.permits > 0 or waiters[number] or shards > 0 then keep('a' .. number, holder.permits, holder.epoch, holder.told_ms) end
end
for number, waiter in pairs(waiters) do keep('w' .. number, waiter.want, waiter.head_ms, waiter.at_ms) end
if #set > 0 then redis.call('HSET', home, 'capacity', string.format('%.0f 0', capacity), unpack(set)) end

local reply = { known >= shards and 'ok' or 'report' }
for number, holder in pairs(holders) do
  if telling[number] or asking[number] then
    local short_ms = waiters[number] and now + SHORT_MS or 0
    reply[#reply + 1] = { tonumber(number), holder.permits, holder.epoch, holder.told_ms > 0 and 1 or 0, short_ms }
  end
end
return reply
