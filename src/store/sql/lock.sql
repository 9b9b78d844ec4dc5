-- Locks rows in the order given, which is the lock order, and reads them: columns as arrays, with the number of each
-- row that is there. The clock is read after the last lock. The lateral sub-select with `offset 0` looks each row up by
-- its key and keeps the order.
--
-- $1 part, $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
with held as materialized (
    select w.number, r.value, r.ts, r.full_at, r.list
      from (select u.*, pg_catalog.row_number() over ()::int4 as number
              from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                           pg_catalog.unnest(p.shards) as shard
                      from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) u) w
     cross join lateral (
         select r.value, r.ts, r.full_at, r.list
           from tollgate.durable r
          where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
         offset 0
            for update of r
     ) r
)
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       h.xid                                      as "xid?",
       h.numbers                                  as "numbers?",
       h.amounts                                  as "values?",
       h.instants                                 as "instants?: Vec<Timestamp>",
       h.full_at                                  as "full_at?: Vec<Timestamp>",
       h.list                                     as "list?: Vec<Option<String>>"
  from (select case when pg_catalog.count(*) > 0 then pg_catalog.txid_current_if_assigned() end as xid,
               pg_catalog.array_agg(held.number)  as numbers,
               pg_catalog.array_agg(held.value)   as amounts,
               pg_catalog.array_agg(held.ts)      as instants,
               pg_catalog.array_agg(held.full_at) as full_at,
               pg_catalog.array_agg(held.list::text) as list
          from held
        offset 0) h
 where case when pg_catalog.row_security_active('tollgate.durable'::regclass)
            then 'row security hides rows of tollgate.durable' else 'on' end::bool
