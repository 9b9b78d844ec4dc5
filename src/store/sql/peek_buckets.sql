-- Reads committed rows of tollgate.buckets without a lock, many at a time: their columns as arrays in the order asked, null
-- where a row is absent. The clock is read after the snapshot.
--
-- Each row is looked up by its key, whatever the planner thinks of their number. Where each lies comes along, so that a swap
-- need not look it up again.
--
-- $1 names, $2 keys, $3 shards
-- $4 the instant to take for now; null for the clock
select coalesce($4, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       array_agg(f.tokens)                        as "values!: Vec<Option<i64>>",
       array_agg(f.last_refill)                   as "instants!: Vec<Option<Timestamp>>",
       array_agg(f.tid)                           as "tids!: Vec<Option<String>>"
  from (
      select r.tokens, r.last_refill, r.tid
        from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[])) with ordinality as w (name, key, shard, place)
        left join lateral (
            select b.tokens, b.last_refill, b.ctid::text as tid
              from tollgate.buckets b
             where b.name = w.name and b.key = w.key and b.shard = w.shard
            offset 0
        ) r on true
       order by w.place
  ) f
