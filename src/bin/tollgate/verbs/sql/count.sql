-- How many rows a limit has in one table.
--
-- $1 name, $2 storage
select case $2
           when 'ephemeral' then (select count(*) from tollgate.buckets where name = $1)
           else (select count(*) from tollgate.rate_limits where name = $1)
       end
