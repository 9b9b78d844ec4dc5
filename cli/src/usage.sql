-- The keys of a meter in one part, those that used most first; and in each row, what all of them used together: as
-- text, because no int8 holds the use of each key.
--
-- $1 name; $2 key, or null for all keys; $3 the part with which keys begin, or null; $4 how many keys; $5 the part
select r.key,
       (-r.value::numeric)::text              as used,
       (-sum(r.value::numeric) over ())::text as total,
       count(*) over ()                       as keys
  from tollgate.durable r
 where r.part = $5
   and r.name = $1
   -- Money.
   and r.list[1] = 3
   and ($2::text is null or r.key = $2)
   -- A part of a key ends with a bar; the next character in the order of keys is a brace.
   and ($3::text is null or r.key = $3 or r.key >= $3 || '|' and r.key < $3 || '}')
 order by r.value, r.key
 limit $4
