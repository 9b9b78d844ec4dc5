-- Inserts a definition, unless there is one of its name.
--
-- $1 name, $2 kind, $3 micro-tokens in each period, $4 the period in microseconds, $5 capacity, $6 how far below zero,
-- $7 start in microseconds, $8 resolution, $9 shards, $10 storage
insert into tollgate.limits (name, kind, rate, period, capacity, max_reserved, start, resolution, shards, storage)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    on conflict do nothing
