-- Locks the row of one key in tollgate.buckets and reads it, unless its committed balance is evidently too low: then reads it
-- without a lock. Inserts it if it is absent and that is asked for, and there are no strangers. The clock is read after the lock, and after the wait
-- that an insert may take.
--
-- What counts as too low is only estimated here, in floats; the caller decides on the state that comes back. An inserted
-- row stands for a full bucket until it is saved. If somebody else inserts the row while this statement runs, neither
-- happens, and it comes back without a value.
--
-- $1 name, $2 key, $3 shard
-- $4 the balance needed, in micro-tokens; null to lock in any case
-- $5 micro-tokens per period, $6 the period in seconds
-- $7 whether tokens come back in steps, $8 the phase of the steps in seconds, null for steps counted from the row itself
-- $9 the capacity to insert, in micro-tokens; null to insert nothing
-- $10 the instant to take for now; null for the clock
with peeked as materialized (
    select r.tokens,
           r.last_refill,
           extract(epoch from r.last_refill)::float8                                             as since,
           extract(epoch from greatest(coalesce($10, pg_catalog.clock_timestamp()), r.last_refill))::float8 as now
      from tollgate.buckets r
     where r.name = $1 and r.key = $2 and r.shard = $3
),
short as materialized (
    select p.tokens, p.last_refill
      from peeked p
     where p.tokens + $5::float8 * case
               when $7 then floor((p.now - coalesce($8, p.since)) / $6::float8)
                          - floor((p.since - coalesce($8, p.since)) / $6::float8)
               else (p.now - p.since) / $6::float8
           end < $4::int8
),
held as materialized (
    select r.tokens, r.last_refill
      from tollgate.buckets r
     where r.name = $1 and r.key = $2 and r.shard = $3
       and not exists (select from short)
       for update
),
-- Left by a definition of another number of shards: a row of ours that is absent is not a full one then. Where nothing is
-- inserted, which the save would check, a row that was there when this statement began may have been taken away for such.
strange as (
    select
      from tollgate.buckets s
     where s.name = $1 and s.key = $2
       and (floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * $3)) / 2)
            or s.shard = $3 and $9::int8 is null)
     limit 1
),
inserted as (
    insert into tollgate.buckets (name, key, shard, tokens, last_refill, expires_at)
    select $1, $2, $3, $9, coalesce($10, pg_catalog.clock_timestamp()), coalesce($10, pg_catalog.clock_timestamp())
     where $9::int8 is not null
       and (select count(*) from held) = 0
       and not exists (select from short)
       and not exists (select from strange)
        on conflict (name, key, shard) do nothing
    returning last_refill
),
-- From the counts of what is locked, as tables: as scalars they would be counted after the clock is read.
observed as materialized (
    select coalesce($10, pg_catalog.clock_timestamp()) as now,
           case
               when held.rows + inserted.rows > 0 then pg_catalog.txid_current_if_assigned()
               when short.rows = 0 then pg_catalog.txid_current()
           end                              as xid,
           short.rows = 0                   as held,
           case
               when held.rows + inserted.rows + short.rows = 0 then exists (select from strange)
               else false
           end                              as strange
      from (select count(*) as rows from short) short
     cross join (select count(*) as rows from held) held
     cross join (select count(*) as rows from inserted) inserted
)
select o.now                                  as "now!: Timestamp",
       o.xid                                  as "xid?",
       o.held                                 as "held!",
       1::int8                                as "place!",
       i.last_refill                          as "inserted?: Timestamp",
       coalesce(h.tokens, s.tokens)           as "value?",
       coalesce(h.last_refill, s.last_refill) as "ts?: Timestamp",
       o.strange                              as "strange!"
  from observed o
  left join held h on true
  left join inserted i on true
  left join short s on true
