-- Of these limits, those that a customer has rows of: rows of the key itself, and of longer keys that begin with it.
--
-- $2 the key; $3 how many
select f.name, f.key
  from names n
 cross join lateral (
     select r.name, r.key from tollgate.durable r where r.part = $1 and r.name = n.name and r.key = $2
      union
     -- Behind `|` comes `}`.
     (select distinct r.name, r.key
        from tollgate.durable r
       where r.part = $1 and r.name = n.name and r.key > $2 || '|' and r.key < $2 || '}'
       order by r.key
       limit $3)
 ) f
 order by f.name, f.key
 limit $3
