-- The columns of rows of tollgate.overrides, with instants in microseconds. An end that is null never comes. An
-- instant beyond the range is the nearest, so that no row makes a reading fail.
       said.name, said.key, said.label, said.effect, said.kind, said.rate, said.period, said.capacity,
       said.max_reserved, said.reason, said.set_by,
       (extract(epoch from greatest(least(said.starts_at, l.last), l.first)) * 1000000::numeric)::int8 as starts_at,
       case when said.ends_at < l.last
            then (extract(epoch from greatest(said.ends_at, l.first)) * 1000000::numeric)::int8 end    as ends_at,
       (extract(epoch from greatest(least(said.set_at, l.last), l.first)) * 1000000::numeric)::int8    as set_at
  from said
 cross join (select timestamptz '4713-01-01 00:00:00+00 BC' as first,
                    timestamptz '262143-01-01 00:00:00+00'  as last) l
