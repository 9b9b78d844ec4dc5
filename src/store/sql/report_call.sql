-- Notes how much of a call's charges is used so far, if that is more than was noted, for a call that has not been
-- settled. No limit's row is touched, and no index.
--
-- $1 part, $2 name, $3 key, $4 id, $5 micro-tokens
update tollgate.calls
   set reported = greatest(reported, $5)
 where part = $1 and name = $2 and key = $3 and id = $4 and not used
   and (array['on', 'row security hides rows of tollgate.calls'])[
           1 + pg_catalog.row_security_active('tollgate.calls'::regclass)::int4
       ]::bool
returning 1 as "written!"
