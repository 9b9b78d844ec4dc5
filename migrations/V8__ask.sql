-- Functions that ask: one limit, or several, all or none. A caller needs no right on the tables, and nothing of the
-- caller's search path is run. If row security is forced on the owner, the functions fail: a hidden row is not a
-- missing one. Variables have the collation of the caller's arguments, so each function names that of the columns with
-- which they are compared.

-- Asks one limit. It decides on the row as it was seen, and writes a grant if the row still is the same, so the
-- decision could have been made then. If the row has changed, it locks the row and decides again. A refusal locks
-- nothing. Expressions are prepared in each transaction, so the usual case has few and small ones.
create function tollgate._ask(limit_name text, key text, cost numeric, reserving bool, looking bool, as_of timestamptz,
                              up_to numeric default null, leaving numeric default null, named tstzrange default null)
returns tollgate.decision
language plpgsql as $$
#variable_conflict use_variable
declare
    micros int8 := tollgate._asked(limit_name, key, cost); part int8; max_debt int8; d record; value int8; list int8[];
    seen timestamptz; seen_full timestamptz; clock timestamptz; retry timestamptz; since int8; full_at int8; at int8;
    level int8; v tollgate._verdict; l tollgate._row; bounds int8[];
    is_lost bool := false;
begin
    if micros is null or tollgate._parts() > 0 then
        perform tollgate._reject(limit_name, key, cost);
    end if;
    select t.* into d from tollgate._limit(limit_name, key) t;
    if d.is_overridden then
        select t.* into d from tollgate._overridden(limit_name, key, as_of) t;
    end if;
    -- A look at the balance, which both reserves and looks, needs no period.
    if d.flow = 'b' and named is null and reserving and looking then
        d.flow := 'p';
        d.period := 1;
    elsif d.flow = 'b' or named is not null and d.flow <> '-' then
        bounds := tollgate._period(limit_name, d.flow, named);
        d.phase := bounds[1];
        d.period := bounds[2];
    end if;
    if d.storage = 'durable' then
        select r.value, r.ts, r.list, r.full_at into value, seen, list, seen_full from tollgate.durable r
         where r.part = 0::int2 and r.name = limit_name and r.key = _ask.key and r.shard = 0::int2;
    else
        select r.value, r.ts, r.list, r.full_at into value, seen, list, seen_full from tollgate.ephemeral r
         where r.part = 0::int2 and r.name = limit_name and r.key = _ask.key and r.shard = 0::int2;
    end if;
    -- The clock is read after the snapshot. Otherwise a refusal could be dated before the grant that causes it.
    clock := coalesce(as_of, clock_timestamp());
    since := tollgate._micros(seen);
    -- The answer of _decide() in the usual case, in fewer expressions: a grant without this took 1.5 times as long.
    -- tests/postgres/functions/rule.rs holds both to the plan.
    if d.flow = 'c' and value is not null and list is null and micros > 0 and not looking
       and up_to is null and leaving is null and d.effect is null and d.paused is null then
        at := tollgate._micros(greatest(clock, seen));
        level := case when seen_full >= seen and seen_full <= greatest(clock, seen)
                           and seen_full < timestamptz '262142-12-31 23:59:59.999999+00' then 0
                      else least(value + tollgate._gained('c', d.rate, d.period, 0, since, at), 0) end;
        if level < micros - d.most then
            if micros <= d.most and not reserving then
                at := greatest(at, tollgate._first_instant('c', d.rate, d.period, 0, value, since, null,
                                                           micros - d.most));
                retry := nullif(least(tollgate._instant(at), case when seen_full >= seen then seen_full end),
                                timestamptz '262142-12-31 23:59:59.999999+00');
                return row(false, 0, (d.most + level) * 0.000001, null, retry, retry - clock,
                           extract(epoch from retry - clock)::float8, limit_name,
                           greatest(clock, seen))::tollgate.decision;
            end if;
        -- No faster definition has used it.
        elsif seen_full <= greatest(clock, seen)
              or (tollgate._micros(seen_full) - since)::numeric * d.rate >= -value::numeric * d.period then
            level := level - micros;
            v.full_at := tollgate._first_instant('c', d.rate, d.period, 0, level, at, null, 0);
            if d.storage = 'durable' then
                update tollgate.durable r
                   set value = level, ts = greatest(clock, seen), full_at = tollgate._instant(v.full_at)
                 where r.part = 0::int2 and r.name = limit_name and r.key = _ask.key and r.shard = 0::int2
                   and r.value = value and r.ts = seen and r.list is null and r.full_at = seen_full;
            else
                update tollgate.ephemeral r
                   set value = level, ts = greatest(clock, seen), full_at = tollgate._instant(v.full_at)
                 where r.part = 0::int2 and r.name = limit_name and r.key = _ask.key and r.shard = 0::int2
                   and r.value = value and r.ts = seen and r.list is null and r.full_at = seen_full;
            end if;
            if found then
                return row(true, cost, (d.most + level) * 0.000001, clock, null, null, null, null,
                           greatest(clock, seen))::tollgate.decision;
            end if;
            is_lost := true;
        end if;
    end if;
    -- A meter refuses nobody.
    max_debt := case when leaving is not null and d.kind <> 'meter' then -tollgate._tokens(leaving)
                     -- A look at the balance is answered, however deep the debt is.
                     when reserving and looking then 0
                     when reserving or d.flow = 'w' then d.max_reserved else 0 end;
    if up_to is not null then
        part := tollgate._tokens(up_to);
    end if;
    if up_to is not null and (part between 1 and micros) is not true
       or leaving is not null and tollgate._tokens(leaving) is null then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: up_to is nothing or more than the cost, or leaving is no amount', limit_name);
    end if;
    -- A look at the balance, which both reserves and looks, shows the row.
    if d.effect is not null and not (reserving and looking) then
        if (d.flow <> '-'
            and (d.effect = 'unlimited' or coalesce(part, micros) <= d.most::numeric + max_debt)) is not true then
            perform tollgate._admit(limit_name, d.kind, d.shards, d.flow, coalesce(part, micros),
                                    d.most::numeric + max_debt);
        end if;
        return tollgate._overruled(d.effect, d.ends_at, limit_name, cost, clock);
    end if;
    full_at := tollgate._micros(seen_full);
    loop
        if is_lost then
            l := tollgate._lock(d.storage, limit_name, key, null, as_of);
            value := l.value; since := l.ts; full_at := l.full_at; list := l.list; seen := null;
            clock := coalesce(as_of, clock_timestamp());
        end if;
        if (d.flow <> '-'
            and list is not distinct from case d.flow when 'w' then array[3]::int8[] end
            and coalesce(part, micros) <= d.most::numeric + max_debt) is not true then
            perform tollgate._admit(limit_name, d.kind, d.shards, d.flow, coalesce(part, micros),
                                    d.most::numeric + max_debt, value, since, full_at, tollgate._micros(clock), list);
        end if;
        v := tollgate._decide(null, d.flow, d.rate, d.period, d.most, d.phase, value, since, full_at,
                              tollgate._micros(clock), micros, part, max_debt, list, d.paused);
        exit when v.new_ts is null or looking;
        if value is null then
            exit when tollgate._insert(d.storage, limit_name, key, v.mark, v.new_value, v.new_ts, v.full_at);
        else
            exit when tollgate._write(d.storage, limit_name, key, value, seen, seen_full, list, v.new_value, v.new_ts,
                                      v.full_at, v.mark);
        end if;
        is_lost := true;
    end loop;
    if v.granted then
        -- A meter bounds nothing.
        v.remaining := case when d.kind <> 'meter' or reserving and looking then v.remaining end;
        return tollgate._answer(v, null, clock, case when v.instant > v.at then v.instant end, null);
    end if;
    return tollgate._answer(v, limit_name, clock, null, nullif(v.instant, 8210266876799999999));
end $$;

create type tollgate.request as (name text, key text, cost numeric, everybody bool, period tstzrange);
comment on type tollgate.request is 'one limit of several, by tollgate.request() or tollgate.request_global()';
create type tollgate._item as (
    place int8, name text, key text, micros int8, kind text, shards int2, storage text, flow "char", rate int8,
    period int8, most int8, max_debt int8, phase int8, value int8, ts int8, seen timestamptz, list int8[], full_at int8,
    mine bool, v tollgate._verdict, is_overridden bool, effect text, ends_at timestamptz, paused int8[]);
-- The most keys that one call may ask. On a busy machine a call of 20 000 kept its rows from others for 7.6 seconds,
-- and one of 2 000 for a second. The owner may replace this one with another number.
create function tollgate._max_keys() returns int4 language sql immutable as 'select 2000';

-- Asks several limits, all or none. Requests for one limit and key are added up. As above, it writes each row if that
-- still is as it was seen, in lock order. If one is not, it locks that row and the later ones, and decides all requests
-- again: then it writes the earlier rows anew, or puts them back.
create function tollgate._ask_all(requests tollgate.request[], reserving bool, looking bool, as_of timestamptz)
returns tollgate.decision language plpgsql as $$
#variable_conflict use_variable
declare
    items tollgate._item[]; i tollgate._item; v tollgate._verdict; refused tollgate._item; all_in_all tollgate._verdict;
    l tollgate._row; clock timestamptz; ready int8; is_usual bool; is_lost bool := false;
    is_denied bool; is_named bool; named tstzrange; bounds int8[];
begin
    if tollgate._parts() > 0 then
        perform tollgate._reject(null, null, null);
    elsif cardinality(requests) > tollgate._max_keys()
          and (select count(*) from (select distinct a.name collate "C", a.key collate "C" from unnest(requests) a) k)
              > tollgate._max_keys() then
        raise exception using errcode = 'TG009', message = format(
            'one call asks more than %s keys of limits', tollgate._max_keys()),
            hint = 'Ask fewer at once, or let the owner replace tollgate._max_keys().';
    end if;
    -- `u` is what _decide() says in the usual case: without it a grant of three took 1.16 times as long, and a refusal
    -- 0.87 times. tests/postgres/functions/rule.rs holds both to the plan.
    select array_agg(row(a.place, a.name, a.key, a.micros, d.kind, d.shards, d.storage, d.flow, d.rate, d.period,
                         d.most, case when reserving or d.flow = 'w' then d.max_reserved else 0 end, d.phase, r.value,
                         tollgate._micros(r.ts), r.ts, r.list, tollgate._micros(r.full_at), false,
                         case when u.rest >= 0 then row(true, a.micros, u.rest, u.at, u.at, u.rest - d.most, u.at,
                             tollgate._first_instant('c', d.rate, d.period, 0, u.rest - d.most, u.at, null, 0), null
                             )::tollgate._verdict end, d.is_overridden, null, null, null)::tollgate._item
                     order by d.storage = 'durable', a.name, a.key),
           min(c.clock), bool_and((u.rest >= 0) is true) and not looking, true, greatest(min(u.rest), 0), min(u.at),
           bool_or(d.is_overridden), bool_or(d.flow = 'b' or a.is_named)
      into items, clock, is_usual, all_in_all.granted, all_in_all.remaining, all_in_all.at, is_denied, is_named
      from (select (u.a).name collate "C" as name, (u.a).key collate "C" as key, min(u.place) as place,
                   case when bool_and(u.micros is not null) and sum(u.micros) <= 9223372036854775807
                        then sum(u.micros)::int8 end as micros, bool_and(u.micros is not null) as is_right,
                   bool_or((u.a).period is not null) as is_named
              from (select p.a, row_number() over () as place,
                           case when (p.a).key <> '' or (p.a).everybody
                                then tollgate._asked((p.a).name, (p.a).key, (p.a).cost) end as micros
                      from (select unnest(p.requests) as a from (select requests offset 0) p) p offset 0) u
             group by 1, 2 offset 0) a
      left join lateral tollgate._limit(case when a.is_right then a.name end, a.key) d on true
      left join lateral (
          (select r.value, r.ts, r.list, r.full_at from tollgate.durable r where d.storage = 'durable'
              and r.part = 0::int2 and r.name = a.name and r.key = a.key and r.shard = 0::int2 offset 0)
          union all
          (select r.value, r.ts, r.list, r.full_at from tollgate.ephemeral r where d.storage = 'ephemeral'
              and r.part = 0::int2 and r.name = a.name and r.key = a.key and r.shard = 0::int2 offset 0)
      ) r on true
     cross join (select coalesce(as_of, clock_timestamp()) as clock offset 0) c
      left join lateral (
          select t.at, d.most - a.micros + case when tollgate._is_over(t.since, t.full_at, t.at) then 0 else
                       least(r.value + tollgate._gained('c', d.rate, d.period, 0, t.since, t.at), 0) end as rest
            from (select tollgate._micros(r.ts) as since, tollgate._micros(r.full_at) as full_at,
                         tollgate._micros(greatest(c.clock, r.ts)) as at offset 0) t
           where d.flow = 'c' and r.value is not null and r.list is null and a.micros > 0
             and (t.full_at <= t.at or (t.full_at - t.since)::numeric * d.rate >= -r.value::numeric * d.period) offset 0
      ) u on true;
    if items is null then
        raise exception using errcode = 'TG002', message = 'no limit is asked';
    end if;
    if is_denied then
        is_denied := false;
        is_usual := false;
        for k in 1 .. array_upper(items, 1) loop
            i := items[k];
            continue when i.is_overridden is not true;
            select i.micros * case when d.effect = 'unlimited' then 0 else 1 end, d.rate, d.period, d.most,
                   case when reserving or d.flow = 'w' then d.max_reserved else 0 end, d.phase, d.is_overridden,
                   d.effect, d.ends_at, d.paused
              into i.micros, i.rate, i.period, i.most, i.max_debt, i.phase, i.is_overridden, i.effect, i.ends_at,
                   i.paused
              from tollgate._overridden(i.name, i.key, as_of) d;
            items[k] := i;
            is_denied := is_denied or coalesce(i.effect = 'deny', false);
        end loop;
    end if;
    if is_named then
        is_usual := false;
        for k in 1 .. array_upper(items, 1) loop
            i := items[k];
            select a.period into named from unnest(requests) a
             where a.name collate "C" = i.name and a.key collate "C" = i.key limit 1;
            if exists (select from unnest(requests) a where a.name collate "C" = i.name and a.key collate "C" = i.key
                                                        and a.period is distinct from named) then
                raise exception using errcode = 'TG002', message = format(
                    'limit %L: one call asks it by two periods', i.name);
            end if;
            continue when (i.flow = 'b' or named is not null and i.flow <> '-') is not true;
            bounds := tollgate._period(i.name, i.flow, named);
            items[k].phase := bounds[1];
            items[k].period := bounds[2];
        end loop;
    end if;
    loop
        if not is_usual then
            refused := null; all_in_all := null; ready := null;
            for k in 1 .. array_upper(items, 1) loop
                i := items[k];
                if (i.flow <> '-'
                    and (is_denied or i.effect = 'unlimited'
                         or i.list is not distinct from case i.flow when 'w' then array[3]::int8[] end)
                    and i.micros <= i.most::numeric + i.max_debt) is not true then
                    perform tollgate._reject(a.name, nullif(a.key, ''), a.cost) from unnest(requests) a
                      where tollgate._asked(a.name, a.key, a.cost) is null or (a.key <> '' or a.everybody) is not true;
                    perform tollgate._admit(i.name, i.kind, i.shards, i.flow, i.micros,
                                            i.most::numeric + i.max_debt,
                                            case when not is_denied and i.effect is null then i.value end,
                                            i.ts, i.full_at, tollgate._micros(clock), i.list);
                end if;
                continue when is_denied and i.effect is distinct from 'deny';
                if i.effect = 'deny' then
                    v := row(false, 0::int8, 0::int8, tollgate._micros(clock),
                             case when isfinite(i.ends_at) then tollgate._micros(i.ends_at)
                                  else 8210266876799999999 end, null::int8, null::int8, null::int8, null::int8[]);
                elsif i.effect = 'unlimited' then
                    v := row(true, i.micros, null::int8, tollgate._micros(clock), tollgate._micros(clock), null::int8,
                             null::int8, null::int8, null::int8[]);
                else
                    v := tollgate._decide(null, i.flow, i.rate, i.period, i.most, i.phase, i.value, i.ts, i.full_at,
                                          tollgate._micros(clock), i.micros, null, i.max_debt, i.list, i.paused);
                end if;
                items[k].v := v;
                if not v.granted then
                    -- The latest instant of the rows that refuse: each grants after its own.
                    v.at := case when refused.place is null then v.at else greatest(v.at, all_in_all.at) end;
                    if refused.place is null or (v.instant, i.place) > (all_in_all.instant, refused.place) then
                        all_in_all := v;
                        refused := i;
                    end if;
                    all_in_all.at := v.at;
                elsif refused.place is null then
                    -- The earliest instant: by a later one a window would give back what it has refilled since.
                    all_in_all.granted := true;
                    all_in_all.remaining := least(all_in_all.remaining,
                                                  case when i.kind <> 'meter' then v.remaining end);
                    all_in_all.at := least(all_in_all.at, v.at);
                    ready := greatest(ready, case when v.instant > v.at then v.instant end);
                end if;
            end loop;
        end if;
        exit when refused.place is not null or looking or is_lost;
        for k in 1 .. array_upper(items, 1) loop
            i := items[k];
            v := i.v;
            continue when i.effect = 'unlimited';
            if not is_lost and i.micros > 0 and i.value is null then
                items[k].mine := tollgate._insert(i.storage, i.name, i.key, v.mark, v.new_value, v.new_ts, v.full_at);
                continue when items[k].mine;
            elsif not is_lost and i.micros > 0 then
                continue when tollgate._write(i.storage, i.name, i.key, i.value, i.seen, tollgate._instant(i.full_at),
                                              i.list, v.new_value, v.new_ts, v.full_at, v.mark);
            end if;
            l := tollgate._lock(i.storage, i.name, i.key, case when i.micros > 0 then i.flow end, as_of);
            is_lost := is_lost or i.micros > 0
                       or (l.value, l.ts, l.full_at) is distinct from (i.value, i.ts, i.full_at);
            i.value := l.value; i.ts := l.ts; i.seen := null; i.list := l.list; i.full_at := l.full_at;
            i.mine := l.mine;
            items[k] := i;
        end loop;
        exit when not is_lost;
        is_usual := false;
        clock := coalesce(as_of, clock_timestamp());
    end loop;
    for k in 1 .. case when is_lost then array_upper(items, 1) else 0 end loop
        i := items[k];
        v := i.v;
        if refused.place is null and i.micros > 0 then
            perform tollgate._write(i.storage, i.name, i.key, null, null, null, null, v.new_value, v.new_ts, v.full_at,
                                    v.mark);
        elsif i.mine then
            perform tollgate._remove(i.storage, i.name, i.key);
        elsif i.seen is not null and i.micros > 0 then
            perform tollgate._write(i.storage, i.name, i.key, null, null, null, null, i.value, i.ts, i.full_at, i.list);
        end if;
    end loop;
    return tollgate._answer(all_in_all, refused.name, clock, ready,
                            case when not all_in_all.granted then nullif(all_in_all.instant, 8210266876799999999) end);
end $$;

create function tollgate.key(variadic parts text[]) returns text language sql immutable as $$
    select (select case when pg_catalog.count(*) = pg_catalog.count(part) then
                       pg_catalog.string_agg(pg_catalog.replace(pg_catalog.replace(
                           part collate pg_catalog."C", E'\\', E'\\\\'), '|', E'\\|'), '|' order by place) end
              from pg_catalog.unnest(parts) with ordinality p (part, place)) $$;
create function tollgate.request(limit_name text, key text, cost numeric default 1, period tstzrange default null)
returns tollgate.request language sql immutable as
$$ select row(limit_name, key, cost, false, period)::tollgate.request $$;
create function tollgate.request_global(limit_name text, cost numeric default 1, period tstzrange default null)
returns tollgate.request language sql immutable as
$$ select row(limit_name, '', cost, true, period)::tollgate.request $$;

create function tollgate.consume(limit_name text, key text, cost numeric default 1, up_to numeric default null,
                                 leaving numeric default null, period tstzrange default null)
returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin
    return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, false, null, up_to, leaving, period);
end $$;
create function tollgate.consume_global(limit_name text, cost numeric default 1, up_to numeric default null,
                                        leaving numeric default null, period tstzrange default null)
returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask(limit_name collate "C", '', cost, false, false, null, up_to, leaving, period); end $$;
create function tollgate.reserve(limit_name text, key text, cost numeric default 1, period tstzrange default null)
returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin
    return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, true, false, null, null, null, period);
end $$;
create function tollgate.check(limit_name text, key text, cost numeric default 1, up_to numeric default null,
                               leaving numeric default null, period tstzrange default null)
returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin
    return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, true, null, up_to, leaving, period);
end $$;
create function tollgate.balance(limit_name text, key text) returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return (tollgate._ask(limit_name collate "C", nullif(key, ''), 0, true, true, null)).remaining; end $$;
create function tollgate.consume_all(requests tollgate.request[]) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask_all(requests, false, false, null); end $$;
create function tollgate.reserve_all(requests tollgate.request[]) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask_all(requests, true, false, null); end $$;
create function tollgate.check_all(requests tollgate.request[]) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask_all(requests, false, true, null); end $$;

-- It returns a bool: a decision, which has nulls in it, is never `is not null`.
create function tollgate.granted(decision tollgate.decision) returns bool language plpgsql as $$
begin
    if decision.granted then
        return true;
    elsif decision.granted is null then
        raise exception using errcode = 'TG002', message = 'null is no decision: no limit was asked';
    end if;
    raise exception using errcode = 'PT429',
        message = pg_catalog.format('limit %L exhausted (%s)', decision.refused_by, case
            when decision.retry_after is null then 'waiting does not help'
            -- The text of an interval would be of the session's style.
            else pg_catalog.format('retry in %s seconds', extract(epoch from decision.retry_after)) end),
        detail = pg_catalog.json_build_object('limit', decision.refused_by, 'retry_at', decision.retry_at,
                                              'remaining', decision.remaining)::text;
end $$;
