-- Locks rows of tollgate.buckets in the order given, which is the lock order, and reads them; null where a row is absent.
-- The clock is read after the last lock.
--
-- $1 names, $2 keys, $3 shards
-- $4 the instant to take for now; null for the clock
with wanted as materialized (
    select *, floor((1 + sqrt(1 + 8 * w.shard)) / 2) as shards
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[])) with ordinality as w (name, key, shard, place)
),
held as materialized (
    select w.place, r.tokens, r.last_refill
      from wanted w
      join tollgate.buckets r on r.name = w.name and r.key = w.key and r.shard = w.shard
     order by w.place
       for update of r
),
-- Whether rows of another number of shards are beside ones that are absent, or beside the first of several.
-- A row that was there when this statement began, and is gone now that it is locked, may have been taken away for such.
strange as (
    select
      from wanted w
     where (w.shard > 0 and w.shard = w.shards * (w.shards - 1) / 2
            or not exists (select from held h where h.place = w.place))
       and exists (select from tollgate.buckets s
                    where s.name = w.name and s.key = w.key
                      and (floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> w.shards
                           or s.shard = w.shard and not exists (select from held h where h.place = w.place)))
     limit 1
),
observed as materialized (
    select coalesce($4, pg_catalog.clock_timestamp()) as now,
           case when c.held > 0 then pg_catalog.txid_current_if_assigned() else pg_catalog.txid_current() end as xid
      from (select count(*) as held from held) c
)
select o.now                        as "now!: Timestamp",
       o.xid                        as "xid?",
       true                         as "held!",
       w.place                      as "place!",
       null::timestamptz            as "inserted?: Timestamp",
       h.tokens                     as "value?",
       h.last_refill                as "ts?: Timestamp",
       exists (select from strange) as "strange!"
  from observed o
 cross join wanted w
  left join held h on h.place = w.place
