-- The state of the tables: their statistics, their options and their indexes.
select s.relname::text                                                        as name,
       s.n_live_tup                                                           as live,
       s.n_dead_tup                                                           as dead,
       -- Marking a call as used takes it out of an index: such an update is not HOT, and no fault.
       case when s.relname = 'calls' then 0 else s.n_tup_upd end              as updates,
       s.n_tup_hot_upd                                                        as hot_updates,
       pg_relation_size(s.relid)                                              as bytes,
       coalesce('autovacuum_enabled=false' = any (c.reloptions)
             or 'autovacuum_enabled=off' = any (c.reloptions), false)         as is_never_vacuumed,
       array(select i.indexrelid::regclass::text
               from pg_index i
              where i.indrelid = s.relid and not i.indisprimary
                and i.indexrelid is distinct from to_regclass('tollgate.calls_lapse'))              as other_indexes
  from pg_stat_user_tables s
  join pg_class c on c.oid = s.relid
 where s.schemaname = 'tollgate' and s.relname in ('ephemeral', 'durable', 'calls')
 order by s.relname
