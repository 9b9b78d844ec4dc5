-- Like save_rows.sql, and writes what becomes of calls with the rows that they have charged: a future that is dropped
-- between two statements would leave what was given back without its receipt used, or what was charged without its id.
-- Returns how many rows and calls were written.
--
-- $1 to $20 as in save_rows.sql
-- calls that were locked: $21 names, $22 keys, $23 ids, $24 whether the id is kept
-- new calls: $25 names, $26 keys, $27 ids, $28 fingerprints, $29 charges, $30 the instants of the decisions,
-- $31 when each lapses, $32 until when each is kept, $33 whether it is used already, $34 what a repeat is answered
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
),
used as (
    update tollgate.calls c
       set used = true, lapses_at = null
      from (
          select f.tid, f.of
            from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                         pg_catalog.unnest(p.ids) as id, pg_catalog.unnest(p.kept) as is_kept
                    from (select $21::text[] as names, $22::text[] as keys, $23::text[] as ids,
                                 $24::bool[] as kept offset 0) p) w
           cross join lateral (
               select c.tableoid as of, c.ctid as tid
                 from tollgate.calls c
                where c.part = $1 and c.name = w.name and c.key = w.key and c.id = w.id
               offset 0
           ) f
           where w.id > '' and w.is_kept
      ) h
     where c.part = $1 and c.ctid = h.tid and c.tableoid = h.of and not c.used
       and pg_catalog.txid_current_if_assigned() = $14::int8
    returning 1
),
gone as (
    delete from tollgate.calls c
      using (
          select f.tid, f.of
            from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                         pg_catalog.unnest(p.ids) as id, pg_catalog.unnest(p.kept) as is_kept
                    from (select $21::text[] as names, $22::text[] as keys, $23::text[] as ids,
                                 $24::bool[] as kept offset 0) p) w
           cross join lateral (
               select c.tableoid as of, c.ctid as tid
                 from tollgate.calls c
                where c.part = $1 and c.name = w.name and c.key = w.key and c.id = w.id
               offset 0
           ) f
           where w.id > '' and not w.is_kept
      ) h
     where c.part = $1 and c.ctid = h.tid and c.tableoid = h.of and not c.used
       and pg_catalog.txid_current_if_assigned() = $14::int8
    returning 1
),
named as (
    insert into tollgate.calls (part, name, key, id, asked, charges, charged_at, lapses_at, kept_until, used, answer)
    select $1, w.name, w.key, w.id, w.asked, w.charges::json, w.charged_at, w.lapses_at, w.kept_until, w.used,
           w.answer::json
      from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                   pg_catalog.unnest(p.ids) as id, pg_catalog.unnest(p.asked) as asked,
                   pg_catalog.unnest(p.charges) as charges, pg_catalog.unnest(p.charged_at) as charged_at,
                   pg_catalog.unnest(p.lapses_at) as lapses_at, pg_catalog.unnest(p.kept_until) as kept_until,
                   pg_catalog.unnest(p.used) as used, pg_catalog.unnest(p.answers) as answer
              from (select $25::text[] as names, $26::text[] as keys, $27::text[] as ids, $28::int8[] as asked,
                           $29::text[] as charges, $30::timestamptz[] as charged_at, $31::timestamptz[] as lapses_at,
                           $32::timestamptz[] as kept_until, $33::bool[] as used,
                           $34::text[] as answers offset 0) p) w
     where pg_catalog.txid_current_if_assigned() = $14::int8
    returning 1
)
select (select pg_catalog.count(*) from ephemeral) + (select pg_catalog.count(*) from durable)
       + (select pg_catalog.count(*) from used) + (select pg_catalog.count(*) from gone)
       + (select pg_catalog.count(*) from named) as "written!"
