select i.result
  from pg_catalog.run_command_on_all_nodes('select system_identifier from pg_catalog.pg_control_system()') i
  join pg_catalog.pg_dist_node n on n.nodeid = i.nodeid
 where n.groupid = $1 and n.noderole::text = 'primary'::text and i.success
