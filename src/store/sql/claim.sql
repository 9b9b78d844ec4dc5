-- Inserts the missing ones of some rows, full by now, and locks the others, row by row in the order given, which is the
-- lock order; then reads those that were there: columns as arrays, with the number of each. To insert after locking the
-- rest would be another order, and deadlock. The clock is read after the last lock. `do update ... where false` is `do
-- nothing` made stronger: it changes nothing either, and locks the row that is there.
--
-- A row that somebody else inserted while this statement ran is locked, but not visible to it: it is neither read nor
-- among the inserted ones.
--
-- $1 part, $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
with wanted as materialized (
    select u.*, pg_catalog.row_number() over ()::int4 as number
      from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                   pg_catalog.unnest(p.shards) as shard
              from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) u
),
inserted as (
    insert into tollgate.durable as r (part, name, key, shard, value, ts, full_at)
    select $1, w.name, w.key, w.shard, 0,
           coalesce($5, pg_catalog.clock_timestamp()), coalesce($5, pg_catalog.clock_timestamp())
      from wanted w
     order by w.number
        on conflict (part, name, key, shard) do update set value = r.value where false
    returning r.name, r.key, r.shard
),
held as materialized (
    select w.number, r.value, r.ts, r.full_at, r.list
      from wanted w
     cross join lateral (
         select r.value, r.ts, r.full_at, r.list
           from tollgate.durable r
          where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
         offset 0
            for update of r
     ) r
     where (select pg_catalog.count(*) from inserted) >= 0
)
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current_if_assigned()      as "xid?",
       h.numbers                                  as "numbers?",
       h.amounts                                  as "values?",
       h.instants                                 as "instants?: Vec<Timestamp>",
       h.full_at                                  as "full_at?: Vec<Timestamp>",
       h.list                                     as "list?: Vec<Option<String>>",
       i.numbers                                  as "inserted?"
  from (select pg_catalog.array_agg(held.number) as numbers,
               pg_catalog.array_agg(held.value)  as amounts,
               pg_catalog.array_agg(held.ts)     as instants,
               pg_catalog.array_agg(held.full_at) as full_at,
               pg_catalog.array_agg(held.list::text) as list
          from held
        offset 0) h
 cross join (select pg_catalog.array_agg(w.number) as numbers
               from inserted i
               join wanted w on w.name = i.name and w.key = i.key and w.shard = i.shard
             offset 0) i
