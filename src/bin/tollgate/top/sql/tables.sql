-- What PostgreSQL knows of both tables: how large, how often written since its statistics were reset, how many rows are dead.
select s.relname::text                                                    as name,
       pg_catalog.pg_relation_size(s.relid) / p.bytes                     as pages,
       pg_catalog.pg_total_relation_size(s.relid)                         as bytes,
       s.n_live_tup                                                       as live,
       s.n_dead_tup                                                       as dead,
       s.n_tup_ins + s.n_tup_upd                                          as written,
       s.n_tup_upd                                                        as updated,
       s.n_tup_hot_upd                                                    as updated_hot,
       s.n_tup_del                                                        as deleted,
       (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::int8 as now
  from pg_catalog.pg_stat_user_tables s
 cross join (select pg_catalog.current_setting('block_size')::int8 as bytes) p
 where s.schemaname = 'tollgate' and s.relname in ('buckets', 'rate_limits')
 order by s.relname
