-- Generated from ../find_full.sql by `./dev sqlx`.
with observed as materialized (
    select pg_catalog.pg_try_advisory_xact_lock(7234017283807667300) as alone,
           coalesce($4, pg_catalog.clock_timestamp())                as now
),
paused as materialized (
    select o.name, o.key
      from tollgate.overrides o
     where o.label = 'pause'::text
       and (select now from observed) - o.ends_at < o.ends_at - o.starts_at
),
found as materialized (
    select r.ctid, r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text as version
      from tollgate.ephemeral r
     where r.ctid >= $1::text::tid
       and r.ctid < $2::text::tid
       and r.full_at <= (
           select now - pg_catalog.make_interval(secs => $5::int8::float8 / 1000000::float8) from observed
       )
       and r.full_at >= r.ts
       and (r.name, r.key) not in (select p.name, p.key from paused p)
       and r.name not in (select p.name from paused p where p.key = ''::text)
       and (select alone from observed)
     order by r.ctid
     limit $3
)
select o.now      as "now!: Timestamp",
       o.alone    as "alone!",
       f.tids     as "tids?",
       f.versions as "versions?"
  from observed o
 cross join (
     select pg_catalog.array_agg(ctid::text) as tids,
            pg_catalog.array_agg(version) as versions
       from found
 ) f
 where case when pg_catalog.row_security_active('tollgate.ephemeral'::regclass)
            then 'row security hides rows of tollgate.ephemeral' else 'on' end::bool
