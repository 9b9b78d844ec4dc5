-- The rows of tollgate.durable that matter most: those that take longest to be full, those that were written last, and
-- those that are used most; and how many rows are not full. If the table is larger than $1 pages, it reads only so many
-- pages: the same ones each time, so that two looks can be compared. The statement for tollgate.ephemeral is made from
-- this one.
--
-- $1 how many pages to read at most; $2 how many rows of each sort; $3 the name of the storage; $4 the part
with share as materialized (
    select least(100, 100 * $1::float8 * current_setting('block_size')::int8
                      / greatest(pg_relation_size('tollgate.durable'), 1)) as percent
),
sampled as materialized (
    select r.name, r.key, r.shard, r.value, r.ts, r.full_at, r.list, r.xmin
      from tollgate.durable as r
           tablesample system ((select percent from share)) repeatable (0)
     where r.part = $4 and r.full_at > clock_timestamp()
),
chosen as (
    (select * from sampled order by full_at desc limit $2)
    union
    (select * from sampled order by age(xmin) limit $2)
    union
    (select * from sampled order by value limit $2)
)
select c.name,
       c.key,
       c.shard,
       $3::text                                                                               as storage,
       c.value,
       (extract(epoch from c.ts) * 1000000)::int8                                             as as_of,
       case when isfinite(c.full_at) then (extract(epoch from c.full_at) * 1000000)::int8 end as full_at,
       c.list::text                                                                           as list,
       share.percent,
       t.not_full
  from chosen c
 cross join share
 cross join (select count(*) as not_full from sampled) t
