-- The same for several keys: takes from all of them or from none.
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local left = {}
local granted = true
for place, key in ipairs(KEYS) do
    local row = redis.call('HMGET', key, 'tokens', 'at')
    local tokens, at = tonumber(row[1]) or capacity, tonumber(row[2]) or now
    left[place] = math.min(capacity, tokens + math.max(0, now - at) * rate)
    granted = granted and left[place] >= cost
end
for place, key in ipairs(KEYS) do
    redis.call('HSET', key, 'tokens', granted and left[place] - cost or left[place], 'at', now)
    redis.call('PEXPIRE', key, 600000)
end
return granted and 1 or 0
