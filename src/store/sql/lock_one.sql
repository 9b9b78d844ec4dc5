-- Locks one row and reads it; no value where the row is missing. A row whose committed balance is evidently too low is
-- read without a lock. The clock is read after the lock.
--
-- "Evidently too low" is an estimate in floats. No row is that is full by now, or whose first entry may have left; a
-- wallet has none. It only decides whether to lock; the caller decides on the state that comes back.
--
-- $1 part, $2 name, $3 key, $4 shard
-- $5 the value needed, in micro-tokens, counted from a full row; null to lock in any case
-- $6 micro-tokens per period, $7 the period in seconds
-- $8 whether tokens come back in steps, $9 the phase of the steps in seconds; null for steps counted from the row
-- itself
-- $10 the instant to take for now; null for the clock
with peeked as materialized (
    select r.value,
           r.ts,
           r.full_at,
           r.list,
           pg_catalog.date_part('epoch', r.ts) as since,
           pg_catalog.date_part('epoch', r.at) as now,
           r.full_at < r.ts or r.full_at > r.at as is_used
      from (select r.value, r.ts, r.full_at, r.list,
                   greatest(coalesce($10, pg_catalog.clock_timestamp()), r.ts) as at
              from tollgate.durable r
             where r.part = $1 and r.name = $2 and r.key = $3 and r.shard = $4
            offset 0) r
),
short as materialized (
    select p.value, p.ts, p.full_at, p.list
      from peeked p
     where p.value::float8 + $6::float8 * case
               when $8 then pg_catalog.floor((p.now - coalesce($9, p.since)) / $7::float8)
                          - pg_catalog.floor((p.since - coalesce($9, p.since)) / $7::float8)
               else (p.now - p.since) / $7::float8
           end < $5::int8::float8
       and p.is_used
       and coalesce(p.list[2]::float8 > p.now * 1e6::float8, true)
),
held as materialized (
    select r.value, r.ts, r.full_at, r.list
      from tollgate.durable r
     where r.part = $1 and r.name = $2 and r.key = $3 and r.shard = $4
       and not exists (select from short)
       for update
),
-- From counts, as tables: as scalars they would be counted after the clock is read.
observed as materialized (
    select coalesce($10, pg_catalog.clock_timestamp())                            as now,
           case when held.rows > 0 then pg_catalog.txid_current_if_assigned() end as xid,
           short.rows = 0                                                         as locked
      from (select pg_catalog.count(*) as rows from held) held
     cross join (select pg_catalog.count(*) as rows from short) short
     where case when pg_catalog.row_security_active('tollgate.durable'::regclass)
                then 'row security hides rows of tollgate.durable' else 'on' end::bool
)
select o.now                      as "now!: Timestamp",
       o.xid                      as "xid?",
       o.locked                   as "locked!",
       coalesce(h.value, s.value) as "value?",
       coalesce(h.ts, s.ts)       as "ts?: Timestamp",
       coalesce(h.full_at, s.full_at) as "full_at?: Timestamp",
       coalesce(h.list, s.list)::text as "list?"
  from observed o
  left join held h on true
  left join short s on true
