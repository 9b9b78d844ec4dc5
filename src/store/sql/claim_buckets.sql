-- Inserts or locks each row in the order given, which is the lock order, and reads those that were there, unless a
-- committed balance is evidently too low: then reads without a lock. The clock is read after the last lock.
--
-- To insert what is missing after locking the rest would be another order, and deadlock. An inserted row stands for a full
-- bucket until it is saved. A row that somebody else inserted while this statement ran is locked, but not visible to it:
-- it comes back without a value, to be read again.
--
-- $1 names, $2 keys, $3 shards, $4 capacities in micro-tokens
-- $5 the balances needed, $6 micro-tokens per period, $7 periods, $8 whether in steps, $9 phases, each as in lock_bucket
-- $10 the instant to take for now; null for the clock
-- $11 whether to beware of strangers
with wanted as materialized (
    select *, floor((1 + sqrt(1 + 8 * w.shard)) / 2) as shards
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]), (select $4::int8[]), (select $5::int8[]),
                  (select $6::float8[]), (select $7::float8[]), (select $8::bool[]), (select $9::float8[]))
           with ordinality as w (name, key, shard, capacity, need, rate, period, stepped, phase, place)
),
peeked as materialized (
    select w.*,
           r.tokens,
           r.last_refill,
           extract(epoch from r.last_refill)::float8                                             as since,
           extract(epoch from greatest(coalesce($10, pg_catalog.clock_timestamp()), r.last_refill))::float8 as now
      from wanted w
      join tollgate.buckets r on r.name = w.name and r.key = w.key and r.shard = w.shard
),
short as materialized (
    select p.place
      from peeked p
     where p.tokens + p.rate * case
               when p.stepped then floor((p.now - coalesce(p.phase, p.since)) / p.period)
                                 - floor((p.since - coalesce(p.phase, p.since)) / p.period)
               else (p.now - p.since) / p.period
           end < p.need
),
-- As in lock_buckets. Then nothing is inserted or locked here: the caller takes them over, and asks again.
strange as materialized (
    select
      from wanted w
     where $11
       and (w.shard > 0 and w.shard = w.shards * (w.shards - 1) / 2
            or not exists (select from peeked p where p.place = w.place))
       and exists (select from tollgate.buckets s
                    where s.name = w.name and s.key = w.key
                      and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> w.shards)
     limit 1
),
claimed as (
    insert into tollgate.buckets as r (name, key, shard, tokens, last_refill, expires_at)
    select w.name, w.key, w.shard, w.capacity, coalesce($10, pg_catalog.clock_timestamp()), coalesce($10, pg_catalog.clock_timestamp())
      from wanted w
     where not exists (select from short)
       and not exists (select from strange)
     order by w.place
        on conflict (name, key, shard) do update set tokens = r.tokens where false
    returning r.name, r.key, r.shard, r.last_refill
),
held as materialized (
    select w.place, r.tokens, r.last_refill
      from wanted w
      join tollgate.buckets r on r.name = w.name and r.key = w.key and r.shard = w.shard
     where (select count(*) from claimed) >= 0
       and not exists (select from short)
       and not exists (select from strange)
     order by w.place
       for update of r
),
-- From the count of what is locked, as a table: as a scalar it would be counted after the clock is read.
observed as materialized (
    select coalesce($10, pg_catalog.clock_timestamp()) as now,
           pg_catalog.txid_current_if_assigned()       as xid,
           short.rows + strange.rows = 0               as held,
           strange.rows > 0                            as strange
      from (select count(*) as rows from short) short
     cross join (select count(*) as rows from strange) strange
     cross join (select count(*) as rows from held) held
)
select o.now                                                      as "now!: Timestamp",
       o.xid                                                      as "xid?",
       o.held                                                     as "held!",
       w.place                                                    as "place!",
       i.last_refill                                              as "inserted?: Timestamp",
       case when o.held then h.tokens else p.tokens end           as "value?",
       case when o.held then h.last_refill else p.last_refill end as "ts?: Timestamp",
       o.strange                                                  as "strange!"
  from observed o
 cross join wanted w
  left join claimed i on i.name = w.name and i.key = w.key and i.shard = w.shard
  left join held h on h.place = w.place
  left join peeked p on p.place = w.place
