-- The names of limits that have rows in one part, and whether they are money. They come from the index, one by one.
--
-- $1 the part
with recursive names as (
    (select name from tollgate.durable where part = $1 order by name limit 1)
    union all
    select (select r.name from tollgate.durable r where r.part = $1 and r.name > n.name order by r.name limit 1)
      from names n
     where n.name is not null
)
select n.name, exists (select from tollgate.durable r where r.part = $1 and r.name = n.name and r.list[1] = 3)
  from names n
 where n.name is not null
