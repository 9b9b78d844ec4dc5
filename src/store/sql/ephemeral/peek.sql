-- Generated from ../peek.sql by `./dev sqlx`.
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
                 where case when pg_catalog.row_security_active('tollgate.ephemeral'::regclass)
                            then 'row security hides rows of tollgate.ephemeral' else 'on' end::bool
                offset 0) p) w
  left join lateral (
      select r.value, r.ts, r.full_at, r.ctid::text as tid, r.list::text as list,
             r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text as version
        from tollgate.ephemeral r
       where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
      offset 0
  ) f on true
