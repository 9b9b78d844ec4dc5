-- Inserts a row of tollgate.buckets, or locks it if it is there, without writing it then. An inserted row stands for a full bucket
-- until it is written.
--
-- $1 name, $2 key, $3 shard, $4 the capacity in micro-tokens, $5 the instant
insert into tollgate.buckets as r (name, key, shard, tokens, last_refill, expires_at)
values ($1, $2, $3, $4, $5, $5)
    on conflict (name, key, shard) do update set tokens = r.tokens where false
