-- Inserts the missing ones of some rows, full by now, and locks the others without writing them, row by row in the
-- order given, which is the lock order. To insert after locking the rest would be another order, and deadlock. Returns
-- the number of each row that was inserted.
--
-- $1 part, $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
insert into tollgate.durable as r (part, name, key, shard, value, ts, full_at)
select $1, w.name, w.key, w.shard, 0,
       coalesce($5, pg_catalog.clock_timestamp()), coalesce($5, pg_catalog.clock_timestamp())
  from (select u.*, pg_catalog.row_number() over () as number
          from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                       pg_catalog.unnest(p.shards) as shard
                  from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) u) w
 order by w.number
    on conflict (part, name, key, shard) do update set value = r.value where false
returning r.name as "name!", r.key as "key!", r.shard as "shard!"
