-- keys: the names of this shard's keys, mirrored from store/keys.py (a test compares the two).
local shard = string.sub(clock, 1, -7)
local TASK = shard .. ':task:'
local BODY = shard .. ':body:'
local STUB = shard .. ':stub:'
local ATTEMPTS = shard .. ':attempts:'
local LINES = shard .. ':lines:'
local CHECKPOINT = shard .. ':checkpoint:'
local DUE = shard .. ':due:'
local READY = shard .. ':ready:'
local TURNS = shard .. ':turns:'
local LANES = shard .. ':lanes'
local BACKLOG = shard .. ':backlog'
local FULL = shard .. ':full'
local PARKED = shard .. ':parked'
local ALLOT = shard .. ':allot'
local FREED = shard .. ':freed'
local TOKENS = shard .. ':tokens'
local BLOCKED = shard .. ':blocked:'
local HELD = shard .. ':held:'
local WITHHELD = shard .. ':withheld:'
local KEYED = shard .. ':keyed'
local WATCH = shard .. ':watch'
local EXPIRY = shard .. ':expiry'
local ROUTES = shard .. ':routes'
local CONF = shard .. ':conf'
local OPENED = shard .. ':opened'
local UNREAD = shard .. ':unread'
local COUNTS = shard .. ':counts'
local STATS = shard .. ':stats'
local SCHEDULES = shard .. ':schedules'
local EVENTS = shard .. ':events'
local WAKE = shard .. ':wake'
local FINISHED = shard .. ':finished'
local LIVE = shard .. ':live'

local INLINE_MAX = 1024   -- of a payload: a larger one would cost its record the compact encoding

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
