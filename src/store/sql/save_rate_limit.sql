-- Writes one row of tollgate.rate_limits that is locked by the transaction $7; by any other, none.
--
-- A row that was inserted is written only if there are no strangers by now: whoever inserted it may have waited
-- meanwhile.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens, $5 instant, $6 when it will be full, $8 whether the row was inserted
update tollgate.rate_limits
   set value = $4, ts = $5, full_at = $6
 where name = $1 and key = $2 and shard = $3
   and (select pg_catalog.txid_current_if_assigned()) = $7::int8
   and case
           when $8::bool then not exists (select from tollgate.rate_limits s
                                           where s.name = $1 and s.key = $2
                                             and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * $3)) / 2))
           else true
       end
