select l.groupid, (select c.system_identifier::text from pg_catalog.pg_control_system() c)
  from pg_catalog.pg_dist_local_group l
