-- Whether this transaction is the one that was marked.
select pg_catalog.current_setting('tollgate.begun', true) is not distinct from 'yes'
