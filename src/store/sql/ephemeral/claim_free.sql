-- Generated from ../claim_free.sql by `./dev sqlx`.
with seen as materialized (
    select w.*, f.is_there is null as is_missing
      from (select u.*, pg_catalog.row_number() over ()::int4 as number
              from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                           pg_catalog.unnest(p.shards) as shard
                      from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) u) w
      left join lateral (
          select true as is_there
            from tollgate.ephemeral r
           where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
          offset 0
      ) f on true
),
held as materialized (
    select s.number, r.value, r.ts, r.full_at, r.list
      from seen s
     cross join lateral (
         select r.value, r.ts, r.full_at, r.list
           from tollgate.ephemeral r
          where r.part = $1 and r.name = s.name and r.key = s.key and r.shard = s.shard
         offset 0
            for update of r skip locked
     ) r
     where not s.is_missing
),
there as materialized (
    select pg_catalog.count(*) as rows from seen s where not s.is_missing
),
inserted as (
    insert into tollgate.ephemeral as r (part, name, key, shard, value, ts, full_at)
    select $1, s.name, s.key, s.shard, 0,
           coalesce($5, pg_catalog.clock_timestamp()), coalesce($5, pg_catalog.clock_timestamp())
      from seen s
     where s.is_missing and $6::bool
       and (select pg_catalog.count(*) from held) = (select t.rows from there t)
     order by s.number
        on conflict (part, name, key, shard) do nothing
    returning r.name, r.key, r.shard
)
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current_if_assigned()      as "xid?",
       h.numbers                                  as "numbers?",
       h.amounts                                  as "values?",
       h.instants                                 as "instants?: Vec<Timestamp>",
       h.full_at                                  as "full_at?: Vec<Timestamp>",
       h.list                                     as "list?: Vec<Option<String>>",
       i.numbers                                  as "inserted?",
       t.rows                                     as "there!"
  from (select pg_catalog.array_agg(held.number) as numbers,
               pg_catalog.array_agg(held.value)  as amounts,
               pg_catalog.array_agg(held.ts)     as instants,
               pg_catalog.array_agg(held.full_at) as full_at,
               pg_catalog.array_agg(held.list::text) as list
          from held
        offset 0) h
 cross join (select pg_catalog.array_agg(s.number) as numbers
               from inserted i
               join seen s on s.name = i.name and s.key = i.key and s.shard = i.shard
             offset 0) i
 cross join there t
 where case when pg_catalog.row_security_active('tollgate.ephemeral'::regclass)
            then 'row security hides rows of tollgate.ephemeral' else 'on' end::bool
