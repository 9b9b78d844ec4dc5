-- The shard of each part in either table, and its node. A shard that several nodes have comes once for each.
--
-- $1 parts
select t.is_durable, p.part, l.shardid, n.groupid, n.nodename, n.nodeport
  from (values (true, 'tollgate.durable'::regclass), (false, 'tollgate.ephemeral'::regclass)) t (is_durable, id)
 cross join pg_catalog.unnest($1::int2[]) p (part)
  join pg_catalog.pg_dist_placement l
    on l.shardid = pg_catalog.get_shard_id_for_distribution_column(t.id, p.part)
  join pg_catalog.pg_dist_node n on n.groupid = l.groupid and n.noderole::text = 'primary'::text
