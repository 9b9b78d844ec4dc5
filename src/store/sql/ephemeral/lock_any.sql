-- Generated from ../lock_any.sql by `./dev sqlx`.
with locked as materialized (
    select w.number, r.value, r.ts, r.full_at, r.list
      from (select u.*, pg_catalog.row_number() over ()::int4 as number
              from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                           pg_catalog.unnest(p.shards) as shard
                      from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) u) w
     cross join lateral (
         select r.value, r.ts, r.full_at, r.list
           from tollgate.ephemeral r
          where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
         offset 0
            for update of r skip locked
     ) r
     limit 1
)
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current_if_assigned()      as "xid?",
       true                                       as "locked!",
       l.value, l.ts as "ts: Timestamp", l.full_at as "full_at: Timestamp", l.list::text as "list?",
       l.number                                   as "number!"
  from locked l
 where case when pg_catalog.row_security_active('tollgate.ephemeral'::regclass)
            then 'row security hides rows of tollgate.ephemeral' else 'on' end::bool
