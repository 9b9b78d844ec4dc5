-- Reads all committed rows of some keys in tollgate.rate_limits without a lock: a row without a shard for a key that has none. The
-- clock is read after the snapshot.
--
-- Returns when the transaction began, too: two statements that agree on it are in one transaction.
--
-- $1 names, $2 keys
-- $3 the instant to take for now; null for the clock
select coalesce($3, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.transaction_timestamp()         as "began!: Timestamp",
       k.place                                    as "place!",
       r.shard                                    as "shard?",
       r.value                                    as "value?",
       r.ts                                       as "ts?: Timestamp"
  from unnest((select $1::text[]), (select $2::text[])) with ordinality as k (name, key, place)
  left join tollgate.rate_limits r on r.name = k.name and r.key = k.key
