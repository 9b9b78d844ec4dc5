-- Writes rows of tollgate.rate_limits that still are what they were read as. Needs no transaction around it: rows that belong
-- to one part are written all or none, and a part of which a row has changed, is locked or is gone is lost. Waits for
-- nobody, so it can neither hang nor deadlock.
--
-- Returns the parts that are lost, null if none is, and how many rows were written.
--
-- $1 names, $2 keys, $3 shards, $4 micro-tokens as read, $5 instants as read
-- $6 micro-tokens, $7 instants, $8 when each will be full, $9 the part that each row belongs to
with wanted as materialized (
    select *
      from unnest($1::text[], $2::text[], $3::int2[], $4::int8[], $5::timestamptz[], $6::int8[], $7::timestamptz[], $8::timestamptz[], $9::int4[])
           with ordinality as w (name, key, shard, old_value, old_ts, value, ts, full_at, part, place)
),
held as materialized (
    select w.*
      from wanted w
     cross join lateral (
         select
           from tollgate.rate_limits b
          where b.name = w.name and b.key = w.key and b.shard = w.shard
            and b.value = w.old_value and b.ts = w.old_ts
            for update skip locked
     ) r
),
lost as materialized (
    select distinct w.part
      from wanted w
     where not exists (select from held h where h.place = w.place)
),
swapped as (
    update tollgate.rate_limits b
       set value = h.value, ts = h.ts, full_at = h.full_at
      from held h
     where b.name = h.name and b.key = h.key and b.shard = h.shard
       and not exists (select from lost l where l.part = h.part)
    returning 1
)
select (select array_agg(part) from lost) as "lost?",
       (select count(*) from swapped)     as "written!"
