-- The names of limits that have rows in one part. They come from the index, one by one, so that no other row is read; the
-- last one is null.
--
-- $1 the part
with recursive names as (
    (select name from tollgate.durable where part = $1 order by name limit 1)
    union all
    select (select r.name from tollgate.durable r where r.part = $1 and r.name > n.name order by r.name limit 1)
      from names n
     where n.name is not null
)
