-- Limits that a customer has rows of, in one part: rows of the key itself, and of longer keys that begin with it. The
-- names of limits come from the index, one by one, so that no other row is read.
--
-- $1 the part; $2 the key; $3 how many
with recursive names as (
    (select name from tollgate.durable where part = $1 order by name limit 1)
    union all
    select (select r.name from tollgate.durable r where r.part = $1 and r.name > n.name order by r.name limit 1)
      from names n
     where n.name is not null
)
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
