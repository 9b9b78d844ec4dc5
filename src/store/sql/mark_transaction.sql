-- Sets a mark that lasts as long as the transaction does: no longer than this statement, where there is none.
select pg_catalog.set_config('tollgate.begun', 'yes', true)
