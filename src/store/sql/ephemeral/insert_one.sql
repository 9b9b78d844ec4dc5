-- Generated from ../insert_one.sql by `./dev sqlx`.
insert into tollgate.ephemeral (part, name, key, shard, value, ts, full_at)
values ($1, $2, $3, $4, $5, coalesce($6, pg_catalog.clock_timestamp()), coalesce($6, pg_catalog.clock_timestamp()))
    on conflict (part, name, key, shard) do nothing
returning 1 as "inserted!"
