-- Inserts a row of tollgate.rate_limits, or locks it if it is there, without writing it then. An inserted row stands for a full bucket
-- until it is written.
--
-- $1 name, $2 key, $3 shard, $4 the capacity in micro-tokens, $5 the instant
insert into tollgate.rate_limits as r (name, key, shard, value, ts, full_at)
values ($1, $2, $3, $4, $5, $5)
    on conflict (name, key, shard) do update set value = r.value where false
