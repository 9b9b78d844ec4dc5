-- The words that stand without a schema, in the bodies of all functions, where a relation, a type or a function may
-- stand, and are neither words of SQL nor in pg_catalog.
with bodies as (
    select regexp_replace(p.prosrc, '--[^\n]*', '', 'g') as body
      from pg_proc p
     where p.pronamespace = 'tollgate'::regnamespace
),
words as (
    select 'relation' as what, m[1] as word
      from bodies, regexp_matches(body, '\m(?:from|join|lateral|into|update|using)\s+([a-z_]+)(?![a-z_.(])', 'g') m
     union
    select 'type', m[1] from bodies, regexp_matches(body, '::\s*([a-z_0-9]+)(?![a-z_0-9.])', 'g') m
     union
    select 'type', m[1]
      from bodies, regexp_matches(split_part(body, 'begin', 1), '(?:declare|;)\s+[a-z_]+ ([a-z_0-9]+)(?= :=|;)', 'g') m
     union
    select 'function', m[1] from bodies, regexp_matches(body, '(?<![a-z_0-9.''%])([a-z_0-9]+)\(', 'g') m
)
select distinct word
  from words
 where not exists (select from pg_get_keywords() k where k.word = words.word)
   -- A variable; a word of SQL from PostgreSQL 18 on.
   and word <> 'period'
   and not case what
       when 'relation' then to_regclass('pg_catalog.' || word) is not null
       when 'type' then to_regtype('pg_catalog.' || word) is not null
       else exists (select from pg_proc p where p.proname = word and p.pronamespace = 'pg_catalog'::regnamespace) end
 order by 1
