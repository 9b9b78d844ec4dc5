-- For how many keys a limit has rows in one table; of several rows that share it, each key has as many.
--
-- $1 name, $2 storage
select case $2
           when 'ephemeral' then (select count(distinct key) from tollgate.buckets where name = $1)
           else (select count(distinct key) from tollgate.rate_limits where name = $1)
       end
