-- Whether the rows of each are money.
select n.name, exists (select from tollgate.durable r where r.part = $1 and r.name = n.name and r.list[1] = 3)
  from names n
 where n.name is not null
