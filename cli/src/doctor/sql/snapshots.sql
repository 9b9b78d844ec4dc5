-- Transactions that keep old row versions alive, oldest first. It does not read the statements of sessions, which may
-- hold secrets.
--
-- $1 from which age on, in seconds
select a.pid::text                                                            as who,
       coalesce(nullif(a.application_name, ''), a.usename::text, 'unknown')   as application,
       coalesce(a.state, 'unknown')                                           as state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8           as age
  from pg_stat_activity a
 where a.datname = current_database()
   and a.pid <> pg_backend_pid()
   and (a.backend_xmin is not null or a.backend_xid is not null)
   and extract(epoch from clock_timestamp() - a.xact_start) >= $1
 union all
select p.gid, p.owner::text, 'prepared', extract(epoch from clock_timestamp() - p.prepared)::float8
  from pg_prepared_xacts p
 where p.database = current_database()
   and extract(epoch from clock_timestamp() - p.prepared) >= $1
 order by age desc
