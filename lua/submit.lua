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
--       wants         str    the events somebody is told about: 'failed succeeded'; may be empty
--       concurrency   str    'hash:limit' of its concurrency key; may be empty
-- REPLY now_ms, then (row, word) for each row not created: 'exists' the task is there (same
--       fingerprint, or no key: a replay), 'reused' its fingerprint differs, 'gone' retention took it, 'quota'
--       this shard has no permit left for an unfinished task of its tenant
-- COST  O(rows · log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/ready
-- @include lib/rules
-- @include lib/limits

local now, seen = read_clock(now_ms)
local reply, keys, dues, words, places = { now }, {}, {}, {}, {}

-- What stands where the new record would: nothing (nil), or the word that answers it.
local function found(id, key, fingerprint)
  local before = redis.call('HMGET', key, 'state', 'fingerprint')
  if before[1] then return (before[2] or '') == fingerprint and 'exists' or 'reused' end
  local stub = redis.call('GET', STUB .. id)
  if not stub then return nil end
  local until_ms, mark = string.match(stub, '^(%d+) (.*)$')
  if tonumber(until_ms) <= now then return nil end
  return mark == fingerprint and 'gone' or 'reused'
end

-- Everything is checked and read before anything is written; one call tells that all is new.
local known = {}
for at = 1, rows do
  local id, lane_text, due, _, _, fingerprint = row(at)
  local due_ms, key = due_at(due, now), TASK .. id
  if id == '' or not lane_of(lane_text) then return redis.error_reply('BADARG row ' .. at .. ': id or lane') end
  if not due_ms then return redis.error_reply('BADARG row ' .. at .. ': due') end
  keys[at], dues[at] = key, due_ms
  places[2 * at - 1], places[2 * at] = key, STUB .. id
  local before = known[id]
  if before then words[at] = before == fingerprint and 'exists' or 'reused' else known[id] = fingerprint end
end
if redis.call('EXISTS', unpack(places)) > 0 then
  for at = 1, rows do
    local id, _, _, _, _, fingerprint = row(at)
    words[at] = found(id, keys[at], fingerprint) or words[at]
  end
end

-- Straight to the stream only where nothing that is due waits, so that nobody is overtaken.
local waiting_ms = tonumber(redis.call('ZRANGE', LANES, 0, 0, 'WITHSCORES')[2])
local overtakes = (waiting_ms and waiting_ms <= now) or redis.call('EXISTS', BACKLOG) == 1
local room = {}
local function may_start(lane, expires_ms, concurrency)
  if (expires_ms and expires_ms <= now) or concurrency ~= '' then return false end
  if rules_exist() and is_limited(lane) then return false end
  local stream = lane.stream
  if not room[stream] then
    local open = is_live(lane.route, now) and not redis.call('ZSCORE', PARKED, stream)
      and redis.call('EXISTS', TURNS .. stream) == 0
    room[stream] = open and room_in(stream) or 0
  end
  room[stream] = room[stream] - 1
  return room[stream] >= 0
end

-- A tenant's unfinished tasks are limited: what this shard has no permit for is refused.
local function refuse_beyond_quota()
  local left = {}
  for at = 1, rows do
    local _, lane_text = row(at)
    local lane = lanes_read[lane_text]
    local most = lane.queue ~= 'notifications' and rules_of('tenant:' .. lane.tenant).pending
    if most and not words[at] then
      local limit = 'p/' .. lane.tenant
      left[limit] = (left[limit] or (allotment(limit) - used(limit))) - 1
      if left[limit] < 0 then words[at] = 'quota' end
    end
  end
end
if rules_exist() then refuse_beyond_quota() end

-- A record with fields that most do not have.
local function create_rare(lane, id, key, due_ms, payload, options, fingerprint, expires_ms, lease_ms, wants, concurrency)
  local fields = { 'due_ms', due_ms, 'lane', lane.text, 'created_ms', now }
  local function keep(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if #payload > INLINE_MAX then
    redis.call('SET', BODY .. id, payload)
    keep('body', #payload)
  elseif payload ~= '' then
    keep('payload', payload)
  end
  if options ~= '' then keep('options', options) end
  if fingerprint ~= '' then keep('fingerprint', fingerprint) end
  if lease_ms then keep('lease_ms', lease_ms) end
  if wants ~= '' then keep('wants', wants) end
  if concurrency ~= '' then
    keep('concurrency', concurrency)
    redis.call('SET', KEYED, '1')
  end
  if expires_ms then
    keep('expires_ms', expires_ms)
    redis.call('ZADD', EXPIRY, expires_ms, id)
  end
  create(lane, id, key, unpack(fields))
end

keep_clock(now, seen)
for at = 1, rows do
  local id, lane_text, _, payload, options, fingerprint, expires_ms, lease_ms, wants, concurrency = row(at)
  local key, lane, due_ms = keys[at], lanes_read[lane_text], dues[at]
  if words[at] then
    reply[#reply + 1] = at
    reply[#reply + 1] = words[at]
  else
    if options == '' and fingerprint == '' and concurrency == '' and not (expires_ms or lease_ms) and #payload <= INLINE_MAX and payload ~= '' then
      create(lane, id, key, 'due_ms', due_ms, 'lane', lane_text, 'created_ms', now, 'payload', payload)
    else
      create_rare(lane, id, key, due_ms, payload, options, fingerprint, expires_ms, lease_ms, wants, concurrency)
    end
    if due_ms <= now and not overtakes and may_start(lane, expires_ms, concurrency) then
      hand_over({ id = id, key = key, lane = lane, state = 'PENDING', version = 1 }, now)
    else
      due_add(lane, id, due_ms)
    end
  end
end
due_flush()
ready_flush()
tell(now)
return reply
