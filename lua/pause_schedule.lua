#!lua flags=allow-oom
--- pause_schedule: it owes nothing until it is resumed. The waiting head of a fixed delay is held; what
--- another policy keeps waiting, or has still to catch up with, goes on waiting.
--
-- KEYS  clock     hash   of the shard
-- ARGV  now_ms    int    0 = ask the server
--       ref       str    tenant:id
--       expected  opt    If-Match
--       op        str    names this call; the same one again is answered again
-- REPLY word, status, version: 'paused' now or before, 'missing', 'version', 'state' (it has ended),
--       'owed' (fire first, then ask again)
-- COST  O(log tasks)
-- @include lib/clock
-- @include lib/keys
-- @include lib/move
-- @include lib/due
-- @include lib/acks
-- @include lib/notify
-- @include lib/occurrence
-- @include lib/unhold
-- @include lib/waiting
-- @include lib/head
local now, seen = read_clock(now_ms)
local schedule = read_schedule(ref)
if not schedule then return { 'missing', '', 0 } end
local function answer(word) return { word, schedule.status, tonumber(schedule.version) } end
if answered(schedule, op) or schedule.status == 'PAUSED' then return answer('paused') end
if expected and expected ~= tonumber(schedule.version) then return answer('version') end
if schedule.status == 'ENDED' then return answer('state') end
if is_owed(schedule, now) then return answer('owed') end

keep_clock(now, seen)
turn(schedule, 'PAUSED')
keep_schedule(schedule, 'version', tonumber(schedule.version) + 1)
remember(schedule, op, 'paused')
-- The first of a chain is no task yet; it is held like one.
if schedule.kind == 'delay' then keep_schedule(schedule, 'held_next_ms', schedule.next_ms) end
next_at(schedule, nil)
hold_head(schedule)
schedule_flush()
ack_flush()
due_flush()
tell(now)
return answer('paused')
