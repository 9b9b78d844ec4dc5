-- Takes from the first of some shards of one key in tollgate.buckets that nobody holds and that still is what it was
-- read as: locks and writes it. Waits for nobody. In any other transaction than the one that began at $9, none.
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
           with ordinality as c (shard, old_tokens, old_last_refill, tokens, last_refill, expires_at, place)
      join tollgate.buckets b
        on b.name = $1 and b.key = $2 and b.shard = c.shard and b.tokens = c.old_tokens and b.last_refill = c.old_last_refill
     where (select pg_catalog.transaction_timestamp()) = $9::timestamptz
),
held as materialized (
    select u.*,
           b.tokens as held_tokens,
           b.last_refill as held_last_refill,
           (b.tokens, b.last_refill) is distinct from (u.old_tokens, u.old_last_refill) as changed
      from unchanged u
      join tollgate.buckets b on b.name = $1 and b.key = $2 and b.shard = u.shard
     order by u.place
     limit 1
       for update of b skip locked
),
written as (
    update tollgate.buckets b
       set tokens = h.tokens, last_refill = h.last_refill, expires_at = h.expires_at
      from held h
     where b.name = $1 and b.key = $2 and b.shard = h.shard
       and not h.changed
    returning 1
)
select h.place                                                as "place!",
       h.changed                                              as "changed!",
       h.held_tokens                                           as "value!",
       h.held_last_refill                                            as "ts!: Timestamp",
       (select count(*) from written)                         as "written!",
       (select pg_catalog.txid_current())                     as "xid!"
  from held h
