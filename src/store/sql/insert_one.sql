-- Inserts the row of a new key as a full one; no row if somebody else has inserted it. Waits for a transaction that is
-- inserting it.
--
-- $1 part, $2 name, $3 key, $4 shard, $5 the capacity in micro-tokens
-- $6 the instant to take for now; null for the clock
insert into tollgate.durable (part, name, key, shard, value, ts, full_at)
values ($1, $2, $3, $4, $5, coalesce($6, pg_catalog.clock_timestamp()), coalesce($6, pg_catalog.clock_timestamp()))
    on conflict (part, name, key, shard) do nothing
returning 1 as "inserted!"
