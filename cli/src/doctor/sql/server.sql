-- The server's version, its standbys and whether it is one, and the settings of the server and of this connection.
select current_setting('server_version')                                      as version,
       current_setting('server_version_num')::int4                            as number,
       pg_is_in_recovery()                                                    as is_standby,
       current_setting('default_transaction_read_only') = 'on'                as is_read_only,
       current_setting('default_transaction_isolation')                       as isolation,
       current_setting('synchronous_commit') = 'off'                          as forgets_commits,
       (select coalesce(string_agg(s.name, ', '), '')
          from pg_settings s
         where s.name in ('fsync', 'full_page_writes') and s.setting = 'off') as unsafe_settings,
       (select count(*) from pg_stat_replication)                             as standbys
