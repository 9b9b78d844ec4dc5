-- Writes rows of tollgate.buckets that still are what they were read as. Needs no transaction around it: rows that belong
-- to one part are written all or none, and a part of which a row has changed, is locked or is gone is lost. Waits for
-- nobody, so it can neither hang nor deadlock.
--
-- Returns the parts that are lost, null if none is, and how many rows were written.
--
-- $1 names, $2 keys, $3 shards, $4 micro-tokens as read, $5 last refills as read
-- $6 micro-tokens, $7 last refills, $8 when each will be full, $9 the part that each row belongs to
with held as materialized (
    select b.ctid as tid, w.tokens, w.last_refill, w.expires_at, w.part
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]), (select $4::int8[]), (select $5::timestamptz[]),
                  (select $6::int8[]), (select $7::timestamptz[]), (select $8::timestamptz[]), (select $9::int4[]))
           as w (name, key, shard, old_tokens, old_last_refill, tokens, last_refill, expires_at, part)
      join tollgate.buckets b
        on b.name = w.name and b.key = w.key and b.shard = w.shard
       and b.tokens = w.old_tokens and b.last_refill = w.old_last_refill
       for update of b skip locked
),
lost as materialized (
    select w.part
      from unnest($9::int4[]) as w (part)
     where (select count(*) from held) < cardinality($9::int4[])
     group by w.part
    having count(*) > (select count(*) from held h where h.part = w.part)
),
swapped as (
    update tollgate.buckets b
       set tokens = h.tokens, last_refill = h.last_refill, expires_at = h.expires_at
      from held h
     where b.ctid = h.tid
       and not exists (select from lost l where l.part = h.part)
    returning 1
)
select (select array_agg(part) from lost) as "lost?",
       (select count(*) from swapped)     as "written!"
