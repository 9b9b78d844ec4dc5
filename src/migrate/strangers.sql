-- Objects that strangers own in the schema, or have tied to ours there: whether each is in the way, what it is, and the
-- statement that removes it. It is in the way if our statements or functions could run or read it instead of our own.
with recursive {trusted},
-- Every object that has an owner.
owned (class, id, name, schema, owner) as (
    select 'pg_catalog.pg_class'::regclass::oid, o.oid, o.relname::text, o.relnamespace, o.relowner
      from pg_catalog.pg_class o
     union all
    select 'pg_catalog.pg_proc'::regclass::oid, o.oid, o.proname::text, o.pronamespace, o.proowner
      from pg_catalog.pg_proc o
     union all
    select 'pg_catalog.pg_type'::regclass::oid, o.oid, o.typname::text, o.typnamespace, o.typowner
      from pg_catalog.pg_type o
     union all
    select 'pg_catalog.pg_operator'::regclass::oid, o.oid, o.oprname::text, o.oprnamespace, o.oprowner
      from pg_catalog.pg_operator o
     union all
    select 'pg_catalog.pg_opclass'::regclass::oid, o.oid, o.opcname::text, o.opcnamespace, o.opcowner
      from pg_catalog.pg_opclass o
     union all
    select 'pg_catalog.pg_opfamily'::regclass::oid, o.oid, o.opfname::text, o.opfnamespace, o.opfowner
      from pg_catalog.pg_opfamily o
     union all
    select 'pg_catalog.pg_collation'::regclass::oid, o.oid, o.collname::text, o.collnamespace, o.collowner
      from pg_catalog.pg_collation o
     union all
    select 'pg_catalog.pg_conversion'::regclass::oid, o.oid, o.conname::text, o.connamespace, o.conowner
      from pg_catalog.pg_conversion o
     union all
    select 'pg_catalog.pg_ts_config'::regclass::oid, o.oid, o.cfgname::text, o.cfgnamespace, o.cfgowner
      from pg_catalog.pg_ts_config o
     union all
    select 'pg_catalog.pg_ts_dict'::regclass::oid, o.oid, o.dictname::text, o.dictnamespace, o.dictowner
      from pg_catalog.pg_ts_dict o
     union all
    select 'pg_catalog.pg_statistic_ext'::regclass::oid, o.oid, o.stxname::text, o.stxnamespace, o.stxowner
      from pg_catalog.pg_statistic_ext o
     union all
    select 'pg_catalog.pg_extension'::regclass::oid, o.oid, o.extname::text, o.extnamespace, o.extowner
      from pg_catalog.pg_extension o
),
-- An administrator owns the objects that a trusted extension makes, but the owner of the extension can change them.
belonging as materialized (
    select o.class, o.id, o.name, o.schema, coalesce(x.extowner, o.owner) as owner
      from owned o
      left join (pg_catalog.pg_depend d
                 join pg_catalog.pg_extension x on x.oid = d.refobjid and d.deptype = 'e'::"char"
                  and d.refclassid = 'pg_catalog.pg_extension'::regclass::oid
                  and x.extowner not in (select t.oid from trusted t)) on d.classid = o.class and d.objid = o.id
),
strange as materialized (
    select b.* from belonging b where b.owner not in (select t.oid from trusted t)
),
place as (
    select n.oid, n.nspowner as owner from pg_catalog.pg_namespace n where n.nspname = 'tollgate'::name
),
ours as materialized (
    select b.class, b.id, b.name
      from belonging b
     where b.schema = (select p.oid from place p) and b.name = any ('{{names}}'::text[])
       and b.owner in (select t.oid from trusted t)
),
-- Objects that PostgreSQL runs or reads with a table of ours.
beside (class, id, beside) as (
    select 'pg_catalog.pg_trigger'::regclass::oid, t.oid, t.tgrelid from pg_catalog.pg_trigger t where not t.tgisinternal
     union all
    select 'pg_catalog.pg_rewrite'::regclass::oid, r.oid, r.ev_class from pg_catalog.pg_rewrite r
     union all
    select 'pg_catalog.pg_policy'::regclass::oid, p.oid, p.polrelid from pg_catalog.pg_policy p
     union all
    select 'pg_catalog.pg_attrdef'::regclass::oid, d.oid, d.adrelid from pg_catalog.pg_attrdef d
     union all
    select 'pg_catalog.pg_constraint'::regclass::oid, c.oid, t.oid
      from pg_catalog.pg_constraint c
     cross join lateral (values (c.conrelid), (c.confrelid)) t (oid)
     where c.contype not in ('p'::"char", 'n'::"char")
     union all
    select 'pg_catalog.pg_class'::regclass::oid, i.indexrelid, i.indrelid
      from pg_catalog.pg_index i where not i.indisprimary
     union all
    select 'pg_catalog.pg_class'::regclass::oid, i.inhrelid, i.inhparent from pg_catalog.pg_inherits i
     union all
    select 'pg_catalog.pg_statistic_ext'::regclass::oid, s.oid, s.stxrelid from pg_catalog.pg_statistic_ext s
),
tied (class, id, name, is_ours) as materialized (
    select o.class, o.id, o.name, true from ours o
     union all
    select b.class, b.id, o.name, false
      from beside b
      join ours o on o.class = 'pg_catalog.pg_class'::regclass::oid and o.id = b.beside
),
found (is_in_the_way, class, id, fault) as (
    select true, 'pg_catalog.pg_namespace'::regclass::oid, p.oid,
           'belongs to ' || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(p.owner)::text)
      from place p
     where p.owner not in (select t.oid from trusted t)
     union
    -- Of a table and the type of its rows, and of a composite type and its columns, one is named. A part of something
    -- else that is found, such as an index, is named only if it has a name of ours.
    select s.name = any ('{{names}}'::text[]), s.class, s.id,
           'belongs to ' || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(s.owner)::text)
      from strange s
     where s.schema = (select p.oid from place p)
       and not exists (select from pg_catalog.pg_class c
                        where c.reltype = s.id and s.class = 'pg_catalog.pg_type'::regclass::oid
                              and c.relkind <> 'c'::"char"
                           or c.oid = s.id and s.class = 'pg_catalog.pg_class'::regclass::oid
                              and c.relkind = 'c'::"char")
       and (s.name = any ('{{names}}'::text[])
            or not exists (select from pg_catalog.pg_depend d
                            where d.classid = s.class and d.objid = s.id and d.refobjid <> s.id
                              and d.deptype = any ('{a,e,i,P,S}'::"char"[])))
     union
    select true, t.class, t.id,
           case when s.id = t.id then 'belongs to ' else 'uses what belongs to ' end
           || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(s.owner)::text)
      from (
          select o.class, o.id, o.class as used_class, o.id as used from tied o
           union all
          select o.class, o.id, d.refclassid, d.refobjid
            from tied o
            join pg_catalog.pg_depend d on d.classid = o.class and d.objid = o.id
      ) t
      join strange s on s.class = t.used_class and s.id = t.used
     union
    -- A history as refinery makes it has nothing of this kind, whoever owns it.
    select true, t.class, t.id, 'is nothing of tollgate''s'
      from tied t
      left join pg_catalog.pg_class c on c.oid = t.id and t.class = 'pg_catalog.pg_class'::regclass::oid
     where t.name = 'schema_history'::text and (not t.is_ours or c.relkind <> 'r'::"char")
     union
    select true, 'pg_catalog.pg_event_trigger'::regclass::oid, e.oid,
           'uses what belongs to ' || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(s.owner)::text)
      from pg_catalog.pg_event_trigger e
      join strange s on s.class = 'pg_catalog.pg_proc'::regclass::oid and s.id = e.evtfoid
     where e.evtenabled <> 'D'::"char"
     union
    -- A cast of a type of theirs is one that no expression of ours asks for.
    select not exists (select from strange t
                        where t.class = 'pg_catalog.pg_type'::regclass::oid and t.id in (c.castsource, c.casttarget)),
           'pg_catalog.pg_cast'::regclass::oid, c.oid,
           'uses what belongs to ' || pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(s.owner)::text)
      from pg_catalog.pg_cast c
      join pg_catalog.pg_type y on y.oid in (c.castsource, c.casttarget)
       and y.typnamespace = (select p.oid from place p)
      join strange s on s.class = 'pg_catalog.pg_proc'::regclass::oid and s.id = c.castfunc
)
select f.is_in_the_way, pg_catalog.concat(i.type, ' ', pg_catalog.replace(i.identity, 'pg_catalog.', ''),
                                            ' ', f.fault) as what,
       pg_catalog.concat('drop ', i.type, ' ', i.identity) as remedy
  from found f
 cross join lateral pg_catalog.pg_identify_object(f.class, f.id, 0) i
 where i.identity is not null
 order by not f.is_in_the_way, i.type <> 'schema', i.type collate "C", i.identity collate "C", f.fault collate "C"
