-- Deletes rows of tollgate.buckets that this call inserted and does not write, if they still are what it inserted: outside a
-- transaction they may be somebody's by now.
--
-- $1 names, $2 keys, $3 shards, $4 micro-tokens, $5 instants
delete from tollgate.buckets r
 using unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]),
              (select $4::int8[]), (select $5::timestamptz[])) as w (name, key, shard, tokens, last_refill)
 where r.name = w.name and r.key = w.key and r.shard = w.shard
   and r.tokens = w.tokens and r.last_refill = w.last_refill
