-- Generated from ../save_one.sql by `./dev sqlx`.
update tollgate.ephemeral
   set value = $5, ts = $6, full_at = $7, list = $9
 where part = $1 and name = $2 and key = $3 and shard = $4
   and ($8::int8 is null or pg_catalog.txid_current_if_assigned() = $8::int8)
   and ($10::int8 is null
        or value = $10::int8 and ts = coalesce($11::timestamptz, ts)
           and (list is null and $12::int8[] is null or pg_catalog.array_eq(list, $12::int8[])))
returning 1 as "written!"
