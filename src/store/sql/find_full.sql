-- Finds rows between two places of the table that have been full for a margin: columns as arrays in the order of the
-- places, null where there is none. Locks no row. The clock is read after the snapshot.
--
-- Finds nothing while another sweeper's statement runs, and says so. A row that says it was full before the instant at
-- which it stands was written by somebody else, and is left alone. So is a row whose limit is or was paused, while the
-- pause counts: it brings a bucket nothing, so the row may be full later. Look-ups for each row took twice as long as
-- the hash of all pauses.
--
-- $1 the first place, $2 the place to stop before, $3 how many at most
-- $4 the instant to take for now; null for the clock
-- $5 the margin in microseconds
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
      from tollgate.durable r
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
 where case when pg_catalog.row_security_active('tollgate.durable'::regclass)
            then 'row security hides rows of tollgate.durable' else 'on' end::bool
