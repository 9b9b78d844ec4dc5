-- Locks a charge whose receipt is to be used; no row if it was used before.
--
-- $1 name, $2 key, $3 id
select r.id
  from tollgate.reservations r
 where r.name = $1 and r.key = $2 and r.id = $3
   for update
