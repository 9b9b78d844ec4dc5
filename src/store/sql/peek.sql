-- Reads committed rows without a lock, many at a time: columns as arrays in the order asked, null where a row is
-- missing. The clock is read after the snapshot.
--
-- The lateral sub-select with `offset 0` looks each row up by its key and keeps the order. A row's place, the
-- transaction that wrote it and its file identify its version: a swap writes only that one.
--
-- Outside of a transaction it also returns the instant at which its own began: in one that somebody left open, that of
-- the swap is the same. It is null where an open transaction might show rows that nobody else sees: it has written
-- before, or keeps an old snapshot.
--
-- $1 part, $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.array_agg(f.value)              as "values!: Vec<Option<i64>>",
       pg_catalog.array_agg(f.ts)                 as "instants!: Vec<Option<Timestamp>>",
       pg_catalog.array_agg(f.full_at)            as "full_at!: Vec<Option<Timestamp>>",
       pg_catalog.array_agg(f.tid)                as "tids!: Vec<Option<String>>",
       pg_catalog.array_agg(f.version)            as "versions!: Vec<Option<String>>",
       pg_catalog.array_agg(f.list)               as "list!: Vec<Option<String>>",
       case when pg_catalog.txid_current_if_assigned() is null
             and pg_catalog.current_setting('transaction_isolation') = 'read committed'
            then pg_catalog.now() end             as "began?: Timestamp"
  from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
               pg_catalog.unnest(p.shards) as shard
          from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards
                 where case when pg_catalog.row_security_active('tollgate.durable'::regclass)
                            then 'row security hides rows of tollgate.durable' else 'on' end::bool
                offset 0) p) w
  left join lateral (
      select r.value, r.ts, r.full_at, r.ctid::text as tid, r.list::text as list,
             r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text as version
        from tollgate.durable r
       where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
      offset 0
  ) f on true
