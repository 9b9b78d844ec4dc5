-- Writes rows of tollgate.rate_limits that still are what they were read as. Needs no transaction around it: rows that belong
-- to one part are written all or none, and a part of which a row has changed, is locked or is gone is lost. Waits for
-- nobody, so it can neither hang nor deadlock.
--
-- A row that somebody has rewritten with the same numbers since this statement's snapshot is locked as its new version, which
-- lies elsewhere and which the update could not see: it is lost, too. If a row is not written all the same, as a trigger or a
-- policy demands, the statement fails as a whole.
--
-- Returns the parts that are lost, null if none is.
--
-- $1 names, $2 keys, $3 shards, $10 where each lies
-- $4 micro-tokens as read, $5 instants as read
-- $6 micro-tokens, $7 instants, $8 when each will be full, $9 the part that each row belongs to
with locked as materialized (
    select b.tableoid as of, b.ctid as tid, w.tid as seen, w.value, w.ts, w.full_at, w.part
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]), (select $4::int8[]), (select $5::timestamptz[]),
                  (select $6::int8[]), (select $7::timestamptz[]), (select $8::timestamptz[]), (select $9::int4[]),
                  (select $10::text[]::tid[]))
           as w (name, key, shard, old_value, old_ts, value, ts, full_at, part, tid)
      join tollgate.rate_limits b
        on b.ctid = w.tid and b.name = w.name and b.key = w.key and b.shard = w.shard
       and b.value = w.old_value and b.ts = w.old_ts
       for update of b skip locked
),
held as materialized (
    select * from locked where tid = seen
),
lost as materialized (
    select w.part
      from unnest($9::int4[]) as w (part)
     where (select count(*) from held) < cardinality($9::int4[])
     group by w.part
    having count(*) > (select count(*) from held h where h.part = w.part)
),
swapped as (
    update tollgate.rate_limits b
       set value = h.value, ts = h.ts, full_at = h.full_at
      from held h
     where b.ctid = h.tid and b.tableoid = h.of
       and not exists (select from lost l where l.part = h.part)
    returning 1
),
counted as (
    select (select count(*) from swapped) as written,
           (select count(*) from held h where not exists (select from lost l where l.part = h.part)) as wanted
)
select case
           when c.written = c.wanted then (select array_agg(part) from lost)
           else array[('tollgate wrote ' || c.written || ' rows of ' || c.wanted)::int4]
       end as "lost?"
  from counted c
