-- Uses up a charge, which the transaction holds.
--
-- $1 name, $2 key, $3 id
delete from tollgate.reservations
 where name = $1 and key = $2 and id = $3
