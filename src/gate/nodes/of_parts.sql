select p.part, n.groupid, n.nodename, n.nodeport
  from pg_catalog.unnest($1::int2[]) p (part)
  join pg_catalog.pg_dist_placement l
    on l.shardid = pg_catalog.get_shard_id_for_distribution_column('tollgate.durable'::pg_catalog.regclass, p.part)
  join pg_catalog.pg_dist_node n on n.groupid = l.groupid and n.noderole::text = 'primary'::text
