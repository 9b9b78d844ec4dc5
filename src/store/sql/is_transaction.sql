-- Whether this transaction has an id already: one that only lasts for a statement never has.
select pg_catalog.txid_current_if_assigned() is not null as "joined!"
