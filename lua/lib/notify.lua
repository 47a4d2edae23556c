-- notify: an event that somebody asked to be told about makes one task on the reserved queue, in the
-- script that records what happened. Its id is a pure function of its cause: it is made once. Running
-- it fans out to the receivers. `wants` are the words of the subject's own receivers; those of the
-- tenant's endpoints stand in `conf`.
local NOTICES, NOTICE_ROUTE = 'notifications', 'http@notify'
local PAIRS = '0123456789abcdefghjkmnpqrstvwxyz'
-- What a subject asks for its own run is not asked for its notification's. Of equal names the last counts.
local OF_SUBJECT = ',"http":null,"retry":{},"timeout_ms":null,"tags":[],"delivery":null,"concurrency":null,"traceparent":null'
local hooks = {}

local function is_named(wants, word) return wants and string.find(wants, word, 1, true) ~= nil end

local function is_wanted(tenant, wants, word)
  if is_named(wants, word) then return true end
  local text = hooks[tenant]
  if text == nil then
    text = setting('hooks:' .. tenant) or ''
    hooks[tenant] = text
  end
  return string.find(text, word, 1, true) ~= nil
end

-- The id that is made of `text`: a letter for its kind, a hash, and this shard.
local function derived_id(kind, text)
  local number = tonumber(string.match(shard, ':(%d+)}$'))
  local high, low = math.floor(number / 32) + 1, number % 32 + 1
  return kind .. string.sub(redis.sha1hex(text), 1, 20) .. string.sub(PAIRS, high, high) .. string.sub(PAIRS, low, low)
end

-- JSON of the cause behind what the subject's own options say, if they are kept: they are not read here.
local function notice_options(cause, kept)
  local member = '"cause":"' .. cause .. '"}'
  if not kept or #kept <= 2 then return '{' .. member end
  return string.sub(kept, 1, -2) .. OF_SUBJECT .. ',' .. member
end

-- event: 'task.failed'. subject and mark hold neither spaces nor quotes: together they name it once.
-- kept: the options of a subject that names receivers, who are told also when it is gone by then.
local function notify(lane, event, subject, mark, now, kept)
  local cause = event .. ' ' .. subject .. ' ' .. mark
  local id = derived_id('n', cause)
  local key = TASK .. id
  if redis.call('EXISTS', key, STUB .. id) > 0 then return end
  local to = lane_of(NOTICES .. ':normal:' .. lane.tenant .. ':' .. NOTICE_ROUTE)
  local options = notice_options(cause .. ' ' .. string.format('%.0f', now), kept)
  create(to, id, key, 'due_ms', now, 'lane', to.text, 'created_ms', now, 'options', options)
  due_add(to, id, now)
end

local EVENT = { SUCCESS = 'succeeded', FAILED = 'failed', CANCELLED = 'cancelled' }

-- The verdict on a task. Those of the reserved queue raise no events of their own. A key that is used
-- again begins at life 1 again: only the time of creation tells the tasks apart.
local function notify_verdict(task, wants, now)
  local lane, word = task.lane, EVENT[task.state]
  if lane.queue == NOTICES or not is_wanted(lane.tenant, wants, word) then return end
  local v = redis.call('HMGET', task.key, 'life', 'created_ms', 'options')
  notify(lane, 'task.' .. word, task.id, (v[1] or '1') .. '/' .. (v[2] or '0'), now, is_named(wants, word) and v[3])
end
