-- Writes rows of both tables that are locked by the transaction $16, and uses up tracked charges, all in one statement: a
-- call is saved whole or not at all, also if its caller goes away. By any other transaction nothing is written, and neither
-- is it if one of the charges was used before. Returns both, and how many rows were written.
--
-- If rows were inserted, nothing is written either if there are strangers by now: whoever inserted them may have waited
-- meanwhile.
--
-- Each charge is deleted by one transaction only: whoever comes second waits for the first, and finds nothing.
--
-- of tollgate.buckets:      $1 names, $2 keys, $3 shards, $4 micro-tokens, $5 last refills, $6 when each will be full
-- of tollgate.rate_limits:  $7 names, $8 keys, $9 shards, $10 micro-tokens, $11 instants, $12 when each will be full
-- of tollgate.reservations: $13 names, $14 keys, $15 ids
-- $17 whether some of the rows were inserted
with joined as materialized (
    select coalesce((select pg_catalog.txid_current_if_assigned()) = $16::int8, false) as yes
),
unused as materialized (
    select r.name, r.key, r.id
      from unnest((select $13::text[]), (select $14::text[]), (select $15::int8[])) with ordinality as w (name, key, id, place)
      join tollgate.reservations r on r.name = w.name and r.key = w.key and r.id = w.id
     where (select yes from joined)
     order by w.place
       for update of r
),
strange as materialized (
    select
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[])) as w (name, key, shard)
      join tollgate.buckets s on s.name = w.name and s.key = w.key
     where $17::bool
       and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * w.shard)) / 2)
     union all
    select
      from unnest((select $7::text[]), (select $8::text[]), (select $9::int2[])) as w (name, key, shard)
      join tollgate.rate_limits s on s.name = w.name and s.key = w.key
     where $17::bool
       and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * w.shard)) / 2)
),
allowed as materialized (
    select j.yes and u.rows = cardinality($15::int8[]) and not exists (select from strange) as yes
      from joined j
     cross join (select count(*) as rows from unused) u
),
used as (
    delete from tollgate.reservations r
     using unused u
     where r.name = u.name and r.key = u.key and r.id = u.id
       and (select yes from allowed)
),
buckets as (
    update tollgate.buckets r
       set tokens = w.tokens, last_refill = w.last_refill, expires_at = w.expires_at
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]),
                  (select $4::int8[]), (select $5::timestamptz[]), (select $6::timestamptz[]))
           as w (name, key, shard, tokens, last_refill, expires_at)
     where r.name = w.name and r.key = w.key and r.shard = w.shard
       and (select yes from allowed)
    returning 1
),
rate_limits as (
    update tollgate.rate_limits r
       set value = w.value, ts = w.ts, full_at = w.full_at
      from unnest((select $7::text[]), (select $8::text[]), (select $9::int2[]),
                  (select $10::int8[]), (select $11::timestamptz[]), (select $12::timestamptz[]))
           as w (name, key, shard, value, ts, full_at)
     where r.name = w.name and r.key = w.key and r.shard = w.shard
       and (select yes from allowed)
    returning 1
)
select j.yes                                                                as "joined!",
       a.yes                                                                as "unused!",
       (select count(*) from buckets) + (select count(*) from rate_limits)  as "written!",
       exists (select from strange)                                         as "strange!"
  from joined j
 cross join allowed a
