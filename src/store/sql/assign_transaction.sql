-- Gives the transaction an id, if it has none.
select pg_catalog.txid_current() as "xid!"
