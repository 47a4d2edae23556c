-- acks: entries that are done with, acknowledged and deleted per stream in one call each.
local acking = {}

local function ack(stream, entry)
  local entries = acking[stream]
  if entries then entries[#entries + 1] = entry else acking[stream] = { entry } end
end

local function ack_flush()
  for stream, entries in pairs(acking) do
    redis.pcall('XACK', READY .. stream, 'workers', unpack(entries))
    redis.call('XDEL', READY .. stream, unpack(entries))
  end
end
