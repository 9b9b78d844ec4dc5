-- Keeps a charge until its receipt is used.
--
-- $1 name, $2 key, $3 what was taken from shard 0, 1, 2, ..., in micro-tokens, $4 their sum, $5 when it may be spent
insert into tollgate.reservations (name, key, parts, cost, ready_at)
values ($1, $2, $3, $4, $5)
returning id
