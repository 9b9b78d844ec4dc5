-- Locks the first of some shards of one key in tollgate.buckets that nobody holds and that still is what it was read as, and reads
-- it. Waits for nobody.
--
-- A row that was changed before the snapshot is passed over; one that was changed since may be the one that is locked.
--
-- $1 name, $2 key, $3 shards in the order of preference, $4 micro-tokens as read, $5 instants as read
with unchanged as materialized (
    select c.shard, c.place
      from unnest($3::int2[], $4::int8[], $5::timestamptz[]) with ordinality as c (shard, old_tokens, old_last_refill, place)
      join tollgate.buckets b on b.shard = c.shard and b.tokens = c.old_tokens and b.last_refill = c.old_last_refill
     where b.name = $1 and b.key = $2
)
select u.place as "place!",
       b.tokens as "value!",
       b.last_refill as "ts!: Timestamp"
  from unchanged u
  join tollgate.buckets b on b.shard = u.shard
 where b.name = $1 and b.key = $2
 order by u.place
 limit 1
   for update of b skip locked
