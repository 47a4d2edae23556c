-- keys: the names of this shard's keys, mirrored from store/keys.py (a test compares the two).
local shard = string.sub(clock, 1, -7)
local TASK, BODY, STUB = shard .. ':task:', shard .. ':body:', shard .. ':stub:'
local ATTEMPTS, LINES, CHECKPOINT = shard .. ':attempts:', shard .. ':lines:', shard .. ':checkpoint:'
local DUE, READY, TURNS = shard .. ':due:', shard .. ':ready:', shard .. ':turns:'
local LANES, BACKLOG, FULL, PARKED = shard .. ':lanes', shard .. ':backlog', shard .. ':full', shard .. ':parked'
local WATCH, EXPIRY, ROUTES, CONF = shard .. ':watch', shard .. ':expiry', shard .. ':routes', shard .. ':conf'
local OPENED, UNREAD = shard .. ':opened', shard .. ':unread'
local COUNTS, STATS, EVENTS = shard .. ':counts', shard .. ':stats', shard .. ':events'
local WAKE, FINISHED, LIVE = shard .. ':wake', shard .. ':finished', shard .. ':live'

-- A lane is 'queue:priority:tenant:route'; none of the parts holds a colon.
local lanes_read = {}
local function lane_of(text)
  local lane = lanes_read[text]
  if lane then return lane end
  local queue, priority, tenant, route = string.match(text, '^([^:]+):([^:]+):([^:]+):([^:]+)$')
  if not queue then return nil end
  lane = {
    text = text, queue = queue, priority = priority, tenant = tenant, route = route,
    stream = queue .. ':' .. priority .. ':' .. route, due = DUE .. text,
  }
  lanes_read[text] = lane
  return lane
end

local function lane_in(stream, tenant)
  local queue, priority, route = string.match(stream, '^([^:]+):([^:]+):([^:]+)$')
  return lane_of(queue .. ':' .. priority .. ':' .. tenant .. ':' .. route)
end

-- A setting as the home record has it: 'version value'. Nil where there is none.
local function setting(name) return string.match(redis.call('HGET', CONF, name) or '', '^%d+ (.*)$') end
