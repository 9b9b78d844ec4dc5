-- Locks the rows of tollgate.rate_limits that have the names and keys given, but are of another number of shards, in
-- lock order, and reads them.
--
-- $1 names, $2 keys, $3 shards of ours, one for each key
with wanted as materialized (
    select *, floor((1 + sqrt(1 + 8 * w.shard)) / 2) as shards
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[])) with ordinality as w (name, key, shard, place)
)
select w.place         as "place!",
       s.shard         as "shard!",
       s.value         as "value!",
       s.ts          as "ts!: Timestamp"
  from wanted w
  join tollgate.rate_limits s on s.name = w.name and s.key = w.key
 where floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> w.shards
 order by w.place, s.shard
   for update of s
