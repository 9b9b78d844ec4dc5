-- The keys of a meter in one part, those that used most first; and in each row, what all of them used together.
--
-- $1 name; $2 key, or null for all keys; $3 the month with which keys begin, or null; $4 how many keys; $5 the part
select r.key,
       (-r.value::numeric)::int8                       as used,
       (-sum(r.value::numeric) over ())::int8          as total,
       count(*) over ()                                as keys,
       bool_and(r.list[1] is not distinct from 3) over () as is_meter
  from tollgate.durable r
 where r.part = $5
   and r.name = $1
   and ($2::text is null or r.key = $2)
   -- A part of a key ends with a bar; the next character in the order of keys is a brace.
   and ($3::text is null or r.key = $3 or r.key >= $3 || '|' and r.key < $3 || '}')
 order by r.value, r.key
 limit $4
