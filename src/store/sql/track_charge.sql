-- Keeps a charge until its receipt is used; outside the transaction $5, none.
--
-- $1 name, $2 key, $3 what was taken from shard 0, 1, 2, ..., in micro-tokens, $4 when it may be spent
insert into tollgate.reservations (name, key, parts, cost, ready_at)
select $1, $2, $3::int8[], (select coalesce(sum(part), 0)::int8 from unnest($3::int8[]) as part), $4
 where (select pg_catalog.txid_current_if_assigned()) = $5::int8
returning id
