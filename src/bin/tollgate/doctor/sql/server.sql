-- What the server is, and how this connection is set.
select current_setting('server_version_num')::int4                            as version,
       current_setting('server_version')                                      as version_text,
       current_setting('synchronous_commit')                                  as synchronous_commit,
       current_setting('fsync')                                               as fsync,
       current_setting('full_page_writes')                                    as full_page_writes,
       current_setting('default_transaction_isolation')                       as isolation,
       current_setting('default_transaction_read_only')                       as read_only,
       pg_is_in_recovery()                                                    as is_standby,
       (select count(*) from pg_stat_replication)                             as standbys
