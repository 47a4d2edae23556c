-- rules: what is set for queues and tenants, as words in `conf`: 'paused strict weight=2 running=10
-- rate=50 pending=1000'. A queue's stand under 'queue:<queue>', a tenant's under 'tenant:<tenant>', its
-- own share of a queue under 'share:<tenant>:<queue>', and everything under 'all'.
local NO_RULES = {}
local rules_read, has_rules = {}, nil

local function rules_exist()
  if has_rules == nil then has_rules = redis.call('EXISTS', CONF) == 1 end
  return has_rules
end

local function rules_of(field)
  if not rules_exist() then return NO_RULES end
  local rules = rules_read[field]
  if rules then return rules end
  local text = setting(field)
  rules = NO_RULES
  if text then
    rules = {}
    for name, value in string.gmatch(text, '(%a+)=?([%d.]*)') do rules[name] = tonumber(value) or true end
  end
  rules_read[field] = rules
  return rules
end

-- The field whose pause holds tasks of this queue (and tenant, where given), or nil.
local function paused_by(queue, tenant)
  if not rules_exist() then return nil end
  if rules_of('all').paused then return 'all' end
  if rules_of('queue:' .. queue).paused then return 'queue:' .. queue end
  if not tenant then return nil end
  if rules_of('tenant:' .. tenant).paused then return 'tenant:' .. tenant end
  local share = 'share:' .. tenant .. ':' .. queue
  return rules_of(share).paused and share or nil
end

-- The same of a lane, looked up once a call.
local function pause_of(lane)
  if lane.pause == nil then lane.pause = paused_by(lane.queue, lane.tenant) or false end
  return lane.pause
end

-- Whether dispatching these tasks is counted or metered, so that only the dispatcher may do it.
local function is_limited(lane)
  local queue, tenant = rules_of('queue:' .. lane.queue), rules_of('tenant:' .. lane.tenant)
  return queue.running or queue.rate or tenant.running or tenant.rate or paused_by(lane.queue, lane.tenant)
end
