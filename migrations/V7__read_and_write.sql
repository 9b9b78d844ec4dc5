-- Functions that read the definition of a limit under its overrides, read and write the row of a key, and tell callers
-- their faults and their answers.

-- The number of parts over which the tables are distributed. These functions ask part 0 only, so they fail where there
-- are others. `tollgate distribute` replaces this one.
create function tollgate._parts() returns int4 language sql immutable as 'select 0';

-- A definition, as it is for a key; no row if there is none. `is_overridden`: it may have an override, which
-- _overridden() applies. A meter is a wallet whose overdraft has no bound, and has no override.
create function tollgate._limit(limit_name text, of_key text)
returns table (kind text, shards int2, storage text, flow "char", rate int8, period int8, most int8, max_reserved int8,
               phase int8, is_overridden bool, effect text, ends_at timestamptz, paused int8[])
language sql stable as $$
    select d.kind, d.shards, d.storage, d.flow, d.rate, case d.flow when 'm' then 2678400000000 else d.period end,
           case d.flow when 'w' then 9223372036854775807 else d.capacity end,
           case d.kind when 'meter' then 9223372036854775807 else d.max_reserved end,
           case d.flow when 'g' then coalesce(d.start, tollgate._phase(limit_name, of_key, d.period))
                       when 'm' then coalesce(d.start, 0) else 0 end,
           d.kind <> 'meter'
           and (exists (select from tollgate.overrides o where o.name = limit_name and o.key = of_key)
                or exists (select from tollgate.overrides o where o.name = limit_name and o.key = '')),
           null::text, null::timestamptz, null::int8[]
      from tollgate.limits d where d.name = limit_name $$;

-- Whether an override counts at an instant. One that had begun when it was set has begun, even if the clock steps back.
create function tollgate._is_live(starts_at timestamptz, ends_at timestamptz, set_at timestamptz, at timestamptz)
returns bool language sql immutable as
$$ select (starts_at <= set_at or at >= starts_at) and at < ends_at $$;
-- The share of the rate that a slow-down leaves at an instant, in millionths. It grows each second from its start on,
-- until it is the whole at the end. Before its start it counts as well: the rate is to stand still until a pause ends.
create function tollgate._share(share int8, starts_at timestamptz, ends_at timestamptz, at timestamptz) returns int8
language sql immutable as $$
    select share + div((1000000 - share)::numeric * greatest(floor(extract(epoch from at - starts_at)), 0),
                       extract(epoch from ends_at - starts_at))::int8 $$;

-- The same under the overrides that are live: the numbers that count, whether an override has set them, and the effect
-- of a deny or unlimited, which answers whatever the row holds. Deny beats unlimited, and unlimited beats numbers,
-- whether they are the key's or every key's. If several deny, the one that ends last counts. Numbers of the key beat
-- those of every key. If there are several such numbers, the ones that were set last count. Numbers of another kind, or
-- reservations of an ephemeral limit, do not apply. Of slow-downs the smallest share counts, of the numbers that count.
-- `paused` is the span of the last pause, which counts while it lasts, and as long again; two that overlap are one.
-- The two keys are joined: `in` reads all overrides of a limit, until the table was analyzed.
create function tollgate._overridden(limit_name text, of_key text, as_of timestamptz)
returns table (kind text, shards int2, storage text, flow "char", rate int8, period int8, most int8, max_reserved int8,
               phase int8, is_overridden bool, effect text, ends_at timestamptz, paused int8[])
language sql stable as $$
    select d.kind, d.shards, d.storage, d.flow,
           case when s.share is null then coalesce(n.rate, d.rate)
                else greatest(div(coalesce(n.rate, d.rate)::numeric * s.share::numeric, 1000000::numeric)::int8,
                              d.shards) end,
           case d.flow when 'm' then 2678400000000 else coalesce(n.period, d.period) end,
           case d.flow when 'w' then 9223372036854775807 else coalesce(n.capacity, d.capacity) end,
           coalesce(n.max_reserved, d.max_reserved),
           case d.flow when 'g' then coalesce(d.start, tollgate._phase(limit_name, of_key,
                                                                        coalesce(n.period, d.period)))
                       when 'm' then coalesce(d.start, 0) else 0 end,
           n.rate is not null or s.share is not null, r.effect, r.ends_at, p.span
      from (select coalesce(as_of, clock_timestamp()) as at) c
      join tollgate.limits d on d.name = limit_name
      left join lateral (
          select o.* from (values (of_key), ('')) k (key)
            join tollgate.overrides o on o.name = limit_name and o.key = k.key
           where tollgate._is_live(o.starts_at, o.ends_at, o.set_at, c.at) and o.effect = 'numbers'
             and o.kind = d.kind and (o.max_reserved = 0 or d.storage = 'durable')
           order by o.key = '', o.set_at desc, o.label desc limit 1) n on true
      left join lateral (
          select case o.effect when 'unlimited' then o.effect else 'deny' end as effect, o.ends_at
            from (values (of_key), ('')) k (key)
            join tollgate.overrides o on o.name = limit_name and o.key = k.key
           where tollgate._is_live(o.starts_at, o.ends_at, o.set_at, c.at) and o.effect not in ('numbers', 'slowed')
           order by 1, 2 desc limit 1) r on true
      left join lateral (
          select min(tollgate._share(o.rate, o.starts_at, o.ends_at, c.at)) as share
            from (values (of_key), ('')) k (key)
            join tollgate.overrides o on o.name = limit_name and o.key = k.key
           where o.ends_at > c.at and o.effect = 'slowed' and o.rate < 1000000 and d.flow not in ('w', 'm', 'b')
      ) s on true
      left join lateral (
          select array[tollgate._micros(min(o.starts_at)), tollgate._micros(max(o.ends_at))] as span
            from (values (of_key), ('')) k (key)
            join tollgate.overrides o on o.name = limit_name and o.key = k.key
           where o.label = 'pause' and o.effect = 'deny' and o.starts_at <= c.at
             and not exists (select from (values (of_key), ('')) k (key)
                               join tollgate.overrides l on l.name = limit_name and l.key = k.key
                              where l.label = 'pause' and l.effect = 'deny' and l.starts_at <= c.at
                                and l.starts_at > o.ends_at)
          having c.at - max(o.ends_at) < max(o.ends_at) - min(o.starts_at)
      ) p on true $$;

-- Inserts a row, unless there is one.
create function tollgate._insert(storage text, limit_name text, key text, mark int8[], value int8, ts int8,
                                 full_at int8) returns bool language plpgsql as $$
begin
    if storage = 'durable' then
        insert into tollgate.durable (part, name, key, shard, value, ts, full_at, list)
        values (0, limit_name, key, 0, value, tollgate._instant(ts), tollgate._instant(full_at), mark)
            on conflict do nothing;
    else
        insert into tollgate.ephemeral (part, name, key, shard, value, ts, full_at, list)
        values (0, limit_name, key, 0, value, tollgate._instant(ts), tollgate._instant(full_at), mark)
            on conflict do nothing;
    end if;
    return found;
end $$;

-- Writes a row if it still is as it was seen. If `seen` is null, the row is locked, and this writes it in any case.
create function tollgate._write(storage text, limit_name text, of_key text, seen_value int8, seen timestamptz,
                                seen_full timestamptz, seen_list int8[], new_value int8, new_ts int8, new_full_at int8,
                                mark int8[])
returns bool language plpgsql as $$
#variable_conflict use_column
begin
    if storage = 'durable' then
        update tollgate.durable r
           set value = new_value, ts = tollgate._instant(new_ts), full_at = tollgate._instant(new_full_at), list = mark
         where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2
           and (seen is null or r.value = seen_value and r.ts = seen and r.list is not distinct from seen_list
                                and r.full_at = seen_full);
    else
        update tollgate.ephemeral r
           set value = new_value, ts = tollgate._instant(new_ts), full_at = tollgate._instant(new_full_at), list = mark
         where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2
           and (seen is null or r.value = seen_value and r.ts = seen and r.list is not distinct from seen_list
                                and r.full_at = seen_full);
    end if;
    return found;
end $$;

-- A locked row. If it is missing, it stays so, or is inserted if a flow is named: then it is `mine`, and still has no
-- value.
create type tollgate._row as (value int8, ts int8, list int8[], full_at int8, mine bool);
create function tollgate._lock(storage text, limit_name text, of_key text, flow "char", as_of timestamptz)
returns tollgate._row language plpgsql as $$
#variable_conflict use_column
declare
    l tollgate._row; now int8;
begin
    loop
        if storage = 'durable' then
            select value, tollgate._micros(ts), list, tollgate._micros(full_at), false into l from tollgate.durable r
             where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2 for update;
        else
            select value, tollgate._micros(ts), list, tollgate._micros(full_at), false into l from tollgate.ephemeral r
             where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2 for update;
        end if;
        exit when found or flow is null;
        now := tollgate._micros(coalesce(as_of, clock_timestamp()));
        l.mine := tollgate._insert(storage, limit_name, of_key, case flow when 'w' then array[3]::int8[] end, 0, now,
                                   now);
        exit when l.mine;
    end loop;
    return l;
end $$;

-- Deletes a row that was inserted and then not written.
create function tollgate._remove(storage text, limit_name text, of_key text) returns void language sql as $$
    delete from tollgate.durable r where storage = 'durable'
       and r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2;
    delete from tollgate.ephemeral r where storage = 'ephemeral'
       and r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2 $$;

create type tollgate.decision as (granted bool, amount numeric, remaining numeric, ready_at timestamptz,
                                  retry_at timestamptz, retry_after interval, retry_after_seconds float8,
                                  refused_by text, decided_at timestamptz);
comment on type tollgate.decision is 'an answer; look at granted, or pass it to tollgate.granted()';

-- Raises the fault of a request as an error. Functions check for distributed tables before they read any: Citus plans
-- none of the helpers that read definitions by their parameters.
create function tollgate._reject(limit_name text, key text, amount numeric) returns void language plpgsql as $$
begin
    if tollgate._parts() > 0 then
        raise exception using errcode = 'TG005', message = 'the tables are distributed: only the Rust library decides';
    end if;
    raise exception using errcode = 'TG002', message = case
        when limit_name is null or limit_name = '' then 'no limit is named'
        else format('limit %L: ', limit_name) || case
            when key is null then 'the key is null or empty (consume_global asks everybody''s row)'
            when octet_length(key) > 512 then 'the key is longer than 512 bytes (hash it, and use the digest)'
            else format('%s is no amount of tokens', coalesce(amount::text, 'null')) end end;
end $$;

-- Fails if these functions cannot decide the limit, if it can never grant the cost, or if the definition may not read
-- the row.
create function tollgate._admit(limit_name text, kind text, shards int2, flow "char", cost int8, possible numeric,
                                value int8 default null, ts int8 default null, full_at int8 default null,
                                now int8 default null, list int8[] default null) returns void language plpgsql as $$
begin
    if flow is null then
        raise exception using errcode = 'TG001', message = format('limit %L is not defined', limit_name),
            hint = 'Run `tollgate limits push`, or call tollgate.define().';
    elsif flow = '-' then
        raise exception using errcode = 'TG005', message = format(
            'limit %L is a %s with %s shards: only the Rust library decides', limit_name, kind, shards);
    elsif (cost <= possible) is not true then
        raise exception using errcode = 'TG004', message = format(
            'limit %L can never grant so much at once, at most %s', limit_name, greatest(possible, 0) * 0.000001);
    elsif not tollgate._may_read(flow, value, ts, full_at, now, list) then
        raise exception using errcode = 'TG006', message = format(
            'limit %L is a wallet in its row or in its definition, and not in the other', limit_name);
    end if;
end $$;

-- The start and the length of the period that a caller names of a limit.
create function tollgate._period(limit_name text, flow "char", named tstzrange) returns int8[]
language plpgsql stable as $$
declare
    -- The library holds instants before this year.
    is_held bool := upper(named) < timestamptz '262143-01-01 00:00:00+00';
    start int8 := tollgate._micros(case when is_held then lower(named) end);
    length int8 := tollgate._micros(case when is_held then upper(named) end) - start;
begin
    if flow <> 'b' then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: only a billing limit is asked by a period', limit_name),
            hint = 'Drop it, or define the limit as billing.';
    elsif named is null then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: a billing limit is asked by a period', limit_name),
            hint = 'Name it: period => tstzrange(starts_at, ends_at). A trigger names none.';
    elsif (isfinite(lower(named)) and isfinite(upper(named)) and lower_inc(named) and not upper_inc(named)
           and length between 1000000 and 31536000000000000) is not true then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: %L is no period of one second to 1000 years', limit_name, named),
            hint = 'Write tstzrange(starts_at, ends_at): the start belongs to it, and the end does not.';
    end if;
    return array[start, length];
end $$;

create function tollgate._answer(v tollgate._verdict, refused_by text, clock timestamptz, ready int8, retry int8)
returns tollgate.decision language sql stable as $$
    select row(v.granted, v.amount * 0.000001, v.remaining * 0.000001,
               case when v.granted then coalesce(tollgate._instant(ready), clock) end, tollgate._instant(retry),
               tollgate._instant(retry) - clock, extract(epoch from tollgate._instant(retry) - clock)::float8,
               refused_by, tollgate._instant(v.at))::tollgate.decision $$;

-- The answer of an override, whatever the row holds: a deny refuses all until it ends, and `unlimited` grants all.
create function tollgate._overruled(effect text, ends_at timestamptz, limit_name text, cost numeric, clock timestamptz)
returns tollgate.decision language sql stable as $$
    select case effect
        when 'unlimited' then row(true, cost, null, clock, null, null, null, null, clock)::tollgate.decision
        else row(false, 0, 0.000000, null, nullif(ends_at, 'infinity'), nullif(ends_at, 'infinity') - clock,
                 extract(epoch from nullif(ends_at, 'infinity') - clock)::float8, limit_name, clock)::tollgate.decision
        end $$;
