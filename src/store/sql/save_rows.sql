-- Writes rows of both tables that transaction $14 has locked; in any other transaction, none. One statement saves a
-- call whole or not at all, even if its caller goes away. Returns how many rows were written.
--
-- The rows are looked up one by one, and written by their places; the range of the shards has the reason of the one in
-- swap.sql.
--
-- $1 part
-- of tollgate.ephemeral:     $2 names, $3 keys, $4 shards, $5 micro-tokens, $6 instants, $7 when each will be full
-- of tollgate.durable: $8 names, $9 keys, $10 shards, $11 micro-tokens, $12 instants, $13 when each will be full
-- $14 the transaction
-- of tollgate.ephemeral:     $15 all lists, $16 where those of each row begin, $17 where they end; null for none
-- of tollgate.durable: $18 all lists, $19 where those of each row begin, $20 where they end; null for none
with ephemeral as (
    update tollgate.ephemeral r
       set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
      from (
          select f.of, f.tid, w.value, w.ts, w.full_at,
                 ($15::int8[])[w.first : w.last] as list
            from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                         pg_catalog.unnest(p.shards) as shard, pg_catalog.unnest(p.amounts) as value,
                         pg_catalog.unnest(p.instants) as ts, pg_catalog.unnest(p.full_at) as full_at,
                         pg_catalog.unnest(p.firsts) as first, pg_catalog.unnest(p.lasts) as last
                    from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards, $5::int8[] as amounts,
                                 $6::timestamptz[] as instants, $7::timestamptz[] as full_at,
                                 $16::int4[] as firsts, $17::int4[] as lasts offset 0) p) w
           cross join lateral (
               select r.tableoid as of, r.ctid as tid
                 from tollgate.ephemeral r
                where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
               offset 0
           ) f
           where w.shard between 0 and 32767
      ) h
     where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
       and pg_catalog.txid_current_if_assigned() = $14::int8
    returning 1
),
durable as (
    update tollgate.durable r
       set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
      from (
          select f.of, f.tid, w.value, w.ts, w.full_at,
                 ($18::int8[])[w.first : w.last] as list
            from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                         pg_catalog.unnest(p.shards) as shard, pg_catalog.unnest(p.amounts) as value,
                         pg_catalog.unnest(p.instants) as ts, pg_catalog.unnest(p.full_at) as full_at,
                         pg_catalog.unnest(p.firsts) as first, pg_catalog.unnest(p.lasts) as last
                    from (select $8::text[] as names, $9::text[] as keys, $10::int2[] as shards, $11::int8[] as amounts,
                                 $12::timestamptz[] as instants, $13::timestamptz[] as full_at,
                                 $19::int4[] as firsts, $20::int4[] as lasts offset 0) p) w
           cross join lateral (
               select r.tableoid as of, r.ctid as tid
                 from tollgate.durable r
                where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
               offset 0
           ) f
           where w.shard between 0 and 32767
      ) h
     where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
       and pg_catalog.txid_current_if_assigned() = $14::int8
    returning 1
)
select (select pg_catalog.count(*) from ephemeral) + (select pg_catalog.count(*) from durable) as "written!"
