-- A token bucket as it is usually written: in floats, by the clock of Redis, with a key that expires.
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local row = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(row[1]) or capacity, tonumber(row[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
local granted = tokens >= cost
if granted then
    tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], 600000)
return granted and 1 or 0
