-- limits: permits and tokens of this shard. A limit over all shards has its home on one; there each
-- shard is allotted a part (`allot`), and no shard uses more than its
-- part, so their sum is never above the limit. `allot` holds 'permits epoch contended short_ms': others
-- wait for it too; the home had no more to give, and is not asked again before. Limits: 't/<tenant>', 'q/<queue>', 'k/<hash of a
-- concurrency key>', 'p/<tenant>' (unfinished tasks); of rates 'rt/<tenant>', 'rq/<queue>'.
local WANT_MAX, LOOK_MAX, FREED_MAX, UNBLOCK_MAX, ASK_AGAIN_MS = 200, 8, 50, 100, 5000
local spent, demands, touched = {}, {}, {}

local function allotment(limit)
  local permits, epoch, contended, short_ms = string.match(redis.call('HGET', ALLOT, limit) or '', '^(%d+) (%d+) ([01]) (%d+)$')
  if not permits and string.sub(limit, 1, 1) == 'k' then   -- never heard of, or forgotten (`relinquish`)
    return 0, tonumber(redis.call('HGET', ALLOT, 'k')) or 0, false, 0
  end
  return tonumber(permits) or 0, tonumber(epoch) or 0, contended == '1', tonumber(short_ms) or 0
end

local function keep_allotment(limit, permits, epoch, contended, short_ms)
  local text = string.format('%.0f %.0f %d %.0f', permits, epoch, contended and 1 or 0, short_ms)
  redis.call('HSET', ALLOT, limit, text)
end

-- Tasks that hold a permit now, what this call has handed over included.
local function used(limit) return (tonumber(redis.call('HGET', COUNTS, limit)) or 0) + (spent[limit] or 0) end

-- At most `most`, and never below what is in use: the home counts on it.
local function give_back(limit, most)
  local permits, epoch, contended = allotment(limit)
  local left = math.max(used(limit), permits - most)
  if left >= permits then return permits end
  keep_allotment(limit, left, epoch, contended, 0)
  return left
end

-- The caller asks the limit's home for more, or tells it what was given back; again after a while, if
-- no answer comes (`apportion`, which takes the mark away).
local function demand(limit, capacity, want, head_ms, now)
  if string.sub(limit, 1, 1) ~= 'r' then redis.call('ZADD', PARKED, now + ASK_AGAIN_MS, '!' .. limit) end
  local found = demands[limit]
  if not found then
    demands[limit] = { capacity = capacity, want = want, head_ms = head_ms }
  else
    found.capacity = math.max(found.capacity, capacity)
    found.want = math.max(found.want, want)
    found.head_ms = math.min(found.head_ms, head_ms)
  end
end

-- Of a rate: 'tokens until_ms mark', the mark being what the home said of the last it gave (`credit`).
local function tokens_left(limit, now)
  local left, until_ms = string.match(redis.call('HGET', TOKENS, limit) or '', '^(%d+) (%d+) %d+$')
  if not left or tonumber(until_ms) <= now then return 0 end
  return tonumber(left)
end

local function spend_tokens(limit, n, now)
  local left, until_ms = string.match(redis.call('HGET', TOKENS, limit) or '', '^(%d+) (%d+ %d+)$')
  if left then redis.call('HSET', TOKENS, limit, string.format('%.0f %s', math.max(tonumber(left) - n, 0), until_ms)) end
end

-- How many tasks `rules` let go on (at most `most`), and what stops the next: a limit and its word.
local function allowance(kind, name, rules, most, want, head_ms, now)
  local room, stopped, why = most, nil, nil
  if rules.running then
    local limit = kind .. '/' .. name
    local permits, epoch, _, short_ms = allotment(limit)
    if epoch == 0 and permits < used(limit) then   -- never told of it: it begins with what is in use
      permits = used(limit)
      keep_allotment(limit, permits, 0, false, short_ms)
    end
    local free = permits - used(limit)
    touched[limit] = rules.running
    if free < room then room, stopped, why = math.max(free, 0), limit, 'running' end
    if free < want and short_ms <= now then demand(limit, rules.running, want - math.max(free, 0), head_ms, now) end
  end
  if rules.rate and room > 0 then
    local limit = 'r' .. kind .. '/' .. name
    local tokens = tokens_left(limit, now)
    if tokens < room then room, stopped, why = tokens, limit, 'rate' end
    if tokens < want then demand(limit, rules.rate, want - tokens, head_ms, now) end
  end
  return room, stopped, why
end

local function spend(lane, n, now)
  for kind, name in pairs({ t = lane.tenant, q = lane.queue }) do
    local limit = kind .. '/' .. name
    spent[limit] = (spent[limit] or 0) + n
    local rules = rules_of((kind == 't' and 'tenant:' or 'queue:') .. name)
    if rules.rate then spend_tokens('r' .. limit, n, now) end
  end
end
