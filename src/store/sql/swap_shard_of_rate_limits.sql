-- Takes from the first of some shards of one key in tollgate.rate_limits that nobody holds and that still is what it
-- was read as: locks and writes it. Waits for nobody. In any other transaction than the one that began at $9, none.
--
-- Returns which it was, by its place, and what it holds if somebody has changed it since the snapshot of this very
-- statement: then it is locked, but not written. A row that was changed before that is passed over without a lock.
--
-- $1 name, $2 key, $3 shards in the order of preference, $4 micro-tokens as read, $5 instants as read
-- $6 micro-tokens, $7 instants, $8 when each will be full
with unchanged as materialized (
    select c.*
      from unnest((select $3::int2[]), (select $4::int8[]), (select $5::timestamptz[]),
                  (select $6::int8[]), (select $7::timestamptz[]), (select $8::timestamptz[]))
           with ordinality as c (shard, old_value, old_ts, value, ts, full_at, place)
      join tollgate.rate_limits b
        on b.name = $1 and b.key = $2 and b.shard = c.shard and b.value = c.old_value and b.ts = c.old_ts
     where (select pg_catalog.transaction_timestamp()) = $9::timestamptz
),
held as materialized (
    select u.*,
           b.value as held_value,
           b.ts as held_ts,
           (b.value, b.ts) is distinct from (u.old_value, u.old_ts) as changed
      from unchanged u
      join tollgate.rate_limits b on b.name = $1 and b.key = $2 and b.shard = u.shard
     order by u.place
     limit 1
       for update of b skip locked
),
written as (
    update tollgate.rate_limits b
       set value = h.value, ts = h.ts, full_at = h.full_at
      from held h
     where b.name = $1 and b.key = $2 and b.shard = h.shard
       and not h.changed
    returning 1
)
select h.place                                                as "place!",
       h.changed                                              as "changed!",
       h.held_value                                           as "value!",
       h.held_ts                                            as "ts!: Timestamp",
       (select count(*) from written)                         as "written!",
       (select pg_catalog.txid_current())                     as "xid!"
  from held h
