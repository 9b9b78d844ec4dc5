--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: service; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA service;


--
-- Name: tollgate; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA tollgate;


--
-- Name: _verdict; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate._verdict AS (
	granted boolean,
	amount bigint,
	remaining bigint,
	at bigint,
	instant bigint,
	new_value bigint,
	new_ts bigint,
	full_at bigint
);


--
-- Name: _item; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate._item AS (
	place bigint,
	name text,
	key text,
	micros bigint,
	kind text,
	shards smallint,
	storage text,
	flow "char",
	rate bigint,
	period bigint,
	most bigint,
	max_debt bigint,
	phase bigint,
	value bigint,
	ts bigint,
	seen timestamp with time zone,
	list bigint[],
	full_at bigint,
	mine boolean,
	v tollgate._verdict,
	is_overridden boolean,
	effect text,
	ends_at timestamp with time zone
);


--
-- Name: _row; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate._row AS (
	value bigint,
	ts bigint,
	list bigint[],
	full_at bigint,
	mine boolean
);


--
-- Name: decision; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate.decision AS (
	granted boolean,
	amount numeric,
	remaining numeric,
	ready_at timestamp with time zone,
	retry_at timestamp with time zone,
	retry_after interval,
	retry_after_seconds double precision,
	refused_by text,
	decided_at timestamp with time zone
);


--
-- Name: override; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate.override AS (
	name text,
	key text,
	label text,
	effect text,
	kind text,
	rate bigint,
	period bigint,
	capacity bigint,
	max_reserved bigint,
	starts_at timestamp with time zone,
	ends_at timestamp with time zone,
	reason text,
	set_by text,
	set_at timestamp with time zone
);


--
-- Name: override_set; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate.override_set AS (
	replaced tollgate.override,
	others tollgate.override[]
);


--
-- Name: request; Type: TYPE; Schema: tollgate; Owner: -
--

CREATE TYPE tollgate.request AS (
	name text,
	key text,
	cost numeric,
	everybody boolean
);


--
-- Name: _admit(text, text, smallint, "char", bigint, numeric, bigint, bigint, bigint, bigint, bigint[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._admit(limit_name text, kind text, shards smallint, flow "char", cost bigint, possible numeric, value bigint DEFAULT NULL::bigint, ts bigint DEFAULT NULL::bigint, full_at bigint DEFAULT NULL::bigint, now bigint DEFAULT NULL::bigint, list bigint[] DEFAULT NULL::bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
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
    elsif not tollgate._fits(flow, value, ts, full_at, now, list) then
        raise exception using errcode = 'TG006', message = format(
            'limit %L is a wallet in its row or in its definition, and not in the other', limit_name);
    end if;
end $$;


--
-- Name: _answer(tollgate._verdict, text, timestamp with time zone, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._answer(v tollgate._verdict, refused_by text, clock timestamp with time zone, ready bigint, retry bigint) RETURNS tollgate.decision
    LANGUAGE sql STABLE
    AS $$
    select row(v.granted, v.amount * 0.000001, v.remaining * 0.000001,
               case when v.granted then coalesce(tollgate._instant(ready), clock) end, tollgate._instant(retry),
               tollgate._instant(retry) - clock, extract(epoch from tollgate._instant(retry) - clock)::float8,
               refused_by, tollgate._instant(v.at))::tollgate.decision $$;


--
-- Name: _ask(text, text, numeric, boolean, boolean, timestamp with time zone, numeric, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._ask(limit_name text, key text, cost numeric, reserving boolean, looking boolean, as_of timestamp with time zone, up_to numeric DEFAULT NULL::numeric, leaving numeric DEFAULT NULL::numeric) RETURNS tollgate.decision
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_variable
declare
    micros int8 := tollgate._asked(limit_name, key, cost); part int8; max_debt int8; d record; value int8; list int8[];
    seen timestamptz; seen_full timestamptz; clock timestamptz; retry timestamptz; since int8; full_at int8; at int8;
    level int8; v tollgate._verdict; l tollgate._row;
    is_lost bool := false;
begin
    if micros is null or tollgate._parts() > 0 then
        perform tollgate._reject(limit_name, key, cost);
    end if;
    select t.* into d from tollgate._limit(limit_name, key) t;
    if d.is_overridden then
        select t.* into d from tollgate._overridden(limit_name, key, as_of) t;
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
    if d.flow = 'c' and value is not null and list is null and micros > 0 and not looking
       and up_to is null and leaving is null and d.effect is null then
        at := tollgate._micros(greatest(clock, seen));
        level := case when seen_full >= seen and seen_full <= greatest(clock, seen)
                           and seen_full < timestamptz '262142-12-31 23:59:59.999999+00' then 0
                      else least(value + tollgate._gained('c', d.rate, d.period, 0, since, at), 0) end;
        if level < micros - d.most then
            if micros <= d.most and not reserving then
                at := greatest(at, tollgate._reached('c', d.rate, d.period, 0, value, since, null, micros - d.most));
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
            v.full_at := tollgate._reached('c', d.rate, d.period, 0, level, at, null, 0);
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
    max_debt := case when leaving is not null then -tollgate._tokens(leaving)
                     -- A look at the balance is answered, however deep the debt is.
                     when reserving and looking then 0
                     when reserving or d.flow = 'w' then d.max_reserved else 0 end;
    if up_to is not null then
        part := tollgate._tokens(up_to);
    end if;
    if up_to is not null and (part between 1 and micros) is not true or leaving is not null and max_debt is null then
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
                              tollgate._micros(clock), micros, part, max_debt);
        exit when v.new_ts is null or looking;
        if value is null then
            exit when tollgate._insert(d.storage, limit_name, key, d.flow, v.new_value, v.new_ts, v.full_at);
        else
            exit when tollgate._write(d.storage, limit_name, key, d.flow, value, seen, seen_full, v.new_value,
                                      v.new_ts, v.full_at);
        end if;
        is_lost := true;
    end loop;
    if v.granted then
        return tollgate._answer(v, null, clock, case when v.instant > v.at then v.instant end, null);
    end if;
    return tollgate._answer(v, limit_name, clock, null, nullif(v.instant, 8210266876799999999));
end $$;


--
-- Name: _ask_all(tollgate.request[], boolean, boolean, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._ask_all(requests tollgate.request[], reserving boolean, looking boolean, as_of timestamp with time zone) RETURNS tollgate.decision
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_variable
declare
    items tollgate._item[]; i tollgate._item; v tollgate._verdict; refused tollgate._item; all_in_all tollgate._verdict;
    l tollgate._row; clock timestamptz; ready int8; is_usual bool; is_lost bool := false;
    is_denied bool;
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
    select array_agg(row(a.place, a.name, a.key, a.micros, d.kind, d.shards, d.storage, d.flow, d.rate, d.period,
                         d.most, case when reserving or d.flow = 'w' then d.max_reserved else 0 end, d.phase, r.value,
                         tollgate._micros(r.ts), r.ts, r.list, tollgate._micros(r.full_at), false,
                         case when u.rest >= 0 then row(true, a.micros, u.rest, u.at, u.at, u.rest - d.most, u.at,
                             tollgate._reached('c', d.rate, d.period, 0, u.rest - d.most, u.at, null, 0)
                             )::tollgate._verdict end, d.is_overridden, null, null)::tollgate._item
                     order by d.storage = 'durable', a.name, a.key),
           min(c.clock), bool_and((u.rest >= 0) is true) and not looking, true, greatest(min(u.rest), 0), min(u.at),
           bool_or(d.is_overridden)
      into items, clock, is_usual, all_in_all.granted, all_in_all.remaining, all_in_all.at, is_denied
      from (select (u.a).name collate "C" as name, (u.a).key collate "C" as key, min(u.place) as place,
                   case when bool_and(u.micros is not null) and sum(u.micros) <= 9223372036854775807
                        then sum(u.micros)::int8 end as micros, bool_and(u.micros is not null) as is_right
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
                   d.effect, d.ends_at
              into i.micros, i.rate, i.period, i.most, i.max_debt, i.phase, i.is_overridden, i.effect, i.ends_at
              from tollgate._overridden(i.name, i.key, as_of) d;
            items[k] := i;
            is_denied := is_denied or coalesce(i.effect = 'deny', false);
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
                                  else 8210266876799999999 end, null::int8, null::int8, null::int8);
                elsif i.effect = 'unlimited' then
                    v := row(true, i.micros, null::int8, tollgate._micros(clock), tollgate._micros(clock), null::int8,
                             null::int8, null::int8);
                else
                    v := tollgate._decide(null, i.flow, i.rate, i.period, i.most, i.phase, i.value, i.ts, i.full_at,
                                          tollgate._micros(clock), i.micros, null, i.max_debt);
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
                    all_in_all.remaining := least(all_in_all.remaining, v.remaining);
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
                items[k].mine := tollgate._insert(i.storage, i.name, i.key, i.flow, v.new_value, v.new_ts, v.full_at);
                continue when items[k].mine;
            elsif not is_lost and i.micros > 0 then
                continue when tollgate._write(i.storage, i.name, i.key, i.flow, i.value, i.seen,
                                              tollgate._instant(i.full_at), v.new_value, v.new_ts, v.full_at);
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
            perform tollgate._write(i.storage, i.name, i.key, i.flow, null, null, null, v.new_value, v.new_ts,
                                    v.full_at);
        elsif i.mine then
            perform tollgate._remove(i.storage, i.name, i.key);
        elsif i.seen is not null and i.micros > 0 then
            perform tollgate._write(i.storage, i.name, i.key, i.flow, null, null, null, i.value, i.ts, i.full_at);
        end if;
    end loop;
    return tollgate._answer(all_in_all, refused.name, clock, ready,
                            case when not all_in_all.granted then nullif(all_in_all.instant, 8210266876799999999) end);
end $$;


--
-- Name: _asked(text, text, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._asked(limit_name text, key text, amount numeric) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ select case when limit_name <> '' and octet_length(key) <= 512 then tollgate._tokens(amount) end $$;


--
-- Name: _change(text, text, text, numeric, numeric, timestamp with time zone, timestamp with time zone, text, interval, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._change(verb text, limit_name text, key text, amount numeric, actual numeric, decided_at timestamp with time zone, ready_at timestamp with time zone, once text, kept interval, as_of timestamp with time zone) RETURNS numeric
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_variable
declare
    q record; v tollgate._verdict; l tollgate._row; micros int8 := tollgate._asked(limit_name, key, amount);
    clock timestamptz; now int8; back numeric := 0; print int8; is_repeat bool := false;
begin
    if micros is null or tollgate._tokens(actual) is null or tollgate._parts() > 0 then
        perform tollgate._reject(limit_name, key, case when micros is null then amount else actual end);
    elsif verb in ('settle', 'cancel') and (isfinite(decided_at) and isfinite(ready_at) and greatest(
                  decided_at, ready_at) < timestamptz '262143-01-01 00:00:00+00') is not true
          or once is not null and (octet_length(once) between 1 and 255
                                   and kept > interval '0' and kept <= interval '365000 days') is not true then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: this is no instant, no id of 1 to 255 bytes, or no span of at most 365000 days', limit_name);
    end if;
    select d.* into q from tollgate._overridden(limit_name, key, as_of) d;
    if (q.flow <> '-') is not true then
        perform tollgate._admit(limit_name, q.kind, q.shards, q.flow, 0, 0);
    end if;
    -- A verb that takes tokens, or changes a wallet, inserts a missing row.
    l := tollgate._lock(q.storage, limit_name, key, case when verb <> 'reset' and (q.flow = 'w' or verb = 'debit'
                                                              or actual > amount) then q.flow end, as_of);
    clock := coalesce(as_of, clock_timestamp());
    now := tollgate._micros(clock);
    perform tollgate._admit(limit_name, q.kind, q.shards, q.flow, 0, 0, l.value, l.ts, l.full_at, now, l.list);
    -- The row first, then its call: the one lock order.
    if once is not null then
        print := tollgate._print(verb, limit_name, key, micros);
        clock := greatest(clock, tollgate._instant(l.ts));
        insert into tollgate.calls (part, name, key, id, asked, charges, answer, charged_at, kept_until)
        values (0, limit_name, key, once, print, '[]', '{}', clock,
                least(clock + kept, timestamptz '262142-12-31 23:59:59.999999+00')) on conflict do nothing;
        is_repeat := not found;
        if is_repeat and not exists (select from tollgate.calls c where c.part = 0::int2 and c.name = limit_name
                                        and c.key = _change.key and c.id = once and c.asked = print) then
            raise exception using errcode = 'TG008', message = format(
                'limit %L: the id was granted another call before (use an id for each)', limit_name);
        end if;
    end if;
    if verb in ('settle', 'cancel') then
        if verb = 'settle' or greatest(now, l.ts) <= tollgate._micros(greatest(ready_at, decided_at)) then
            back := (amount - actual) * 1000000;
        end if;
        -- Under an unlimited override that was set by then, it was charged nothing. One that was set later charged
        -- before, whenever it starts. While the clock is behind its setting, nobody knows which came first.
        if exists (select from (values (key), ('')) k (key)
                     join tollgate.overrides o on o.name = limit_name and o.key = k.key
                    where o.effect = 'unlimited' and (o.set_at <= decided_at or o.set_at > clock)
                      and tollgate._is_live(o.starts_at, o.ends_at, o.set_at, decided_at)) then
            back := 0;
        end if;
        v := tollgate._settle(q.flow, q.rate, q.period, l.value, l.ts, q.flow <> 'w' and l.list is not null, l.full_at,
                              now, tollgate._micros(decided_at), back);
        v.remaining := micros - case when v.new_ts is null then 0 else back end;
    else
        v := tollgate._decide(case when is_repeat then 'look' else verb end, q.flow, q.rate, q.period, q.most, q.phase,
                              l.value, l.ts, l.full_at, now, micros, null, 0);
    end if;
    if v.new_ts is not null then
        perform tollgate._write(q.storage, limit_name, key, q.flow, null, null, null, v.new_value, v.new_ts, v.full_at);
    elsif l.mine then
        perform tollgate._remove(q.storage, limit_name, key);
    end if;
    return v.remaining * 0.000001;
end $$;


--
-- Name: _clamp(numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._clamp(at numeric) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ select least(8210266876799999999, at)::int8 $$;


--
-- Name: _decide(text, "char", bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._decide(verb text, flow "char", rate bigint, period bigint, most bigint, phase bigint, value bigint, ts bigint, full_at bigint, now bigint, amount bigint, part bigint, max_debt bigint) RETURNS tollgate._verdict
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v tollgate._verdict; top int8 := case flow when 'w' then 0 else most end; debt numeric; level numeric;
    taken numeric := amount;
begin
    v.at := greatest(now, ts);
    if value is null or tollgate._is_over(ts, full_at, now) then
        -- A reset leaves a missing row missing.
        verb := case when verb = 'reset' and value is null then 'look' else verb end;
        ts := tollgate._fresh(flow, period, phase, ts, v.at);
        value := 0;
        full_at := null;
    end if;
    level := least(value + tollgate._gained(flow, rate, period, phase, ts, v.at), case when flow <> 'w' then 0 end);
    if verb is null then
        debt := least(max_debt, 9223372036854775807 - top);
        if part is not null then
            taken := least(top + level + debt, amount);
            taken := greatest(part, case when amount % 1000000 = 0 and part % 1000000 = 0 then trunc(taken, -6)
                                         else taken end);
        end if;
        if top + level - taken < -debt then
            if max_debt = 9223372036854775807 then
                raise exception using errcode = 'TG003', message = 'a debt this deep does not fit';
            end if;
            return row(false, 0::int8, (top + level)::int8, v.at, greatest(v.at, tollgate._reached(flow, rate, period,
                       phase, value, ts, full_at, taken - debt - top)), null::int8, null::int8, null::int8);
        end if;
    else
        taken := case verb when 'debit' then amount when 'reset' then level
                           when 'credit' then -least(amount, case when flow <> 'w' then -level end) else 0 end;
        if level - taken < -9223372036854775808 then
            raise exception using errcode = 'TG003', message = 'a debt this deep does not fit';
        elsif level - taken > 9223372036854775807 then
            raise exception using errcode = 'TG007', message = 'a balance this large does not fit';
        elsif verb = 'reset' then
            ts := tollgate._fresh(flow, period, phase, null, now);
            return row(true, 0::int8, top, v.at, v.at, 0::int8, ts, ts);
        end if;
    end if;
    v := row(true, taken, top + level - taken, v.at, v.at, level - taken,
             case when taken <> 0 then tollgate._stands(flow, period, phase, ts, v.at) end, null);
    if v.new_ts is not null then
        v.full_at := case when flow = 'w' then case when v.new_value = 0 then v.new_ts else 8210266876799999999 end
                          else tollgate._reached(flow, rate, period, phase, v.new_value, v.new_ts, null, 0) end;
        if full_at >= ts and full_at < v.full_at and flow <> 'w' then
            if value + tollgate._gained(flow, rate, period, phase, ts, full_at) < 0 then
                taken := greatest(taken, 0) * case flow when 'c' then period else 1 end + (rate - 1);
                v.full_at := greatest(v.new_ts, least(v.full_at, tollgate._clamp(
                    greatest(full_at, v.new_ts) + div(taken, rate) * case flow when 'c' then 1 else period end)));
            end if;
        end if;
    end if;
    if v.remaining < 0 and flow <> 'w' then
        v.instant := greatest(v.at, tollgate._reached(flow, rate, period, phase,
            case when v.new_ts is null then value else v.new_value end, coalesce(v.new_ts, ts),
            coalesce(v.full_at, full_at), -top));
    end if;
    return v;
end $$;


--
-- Name: _fits("char", bigint, bigint, bigint, bigint, bigint[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._fits(flow "char", value bigint, ts bigint, full_at bigint, now bigint, list bigint[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select value is null or coalesce(list[1] between 1 and 3, list is null)
           and (tollgate._is_over(ts, full_at, now) or coalesce(list[1] = 3, false) = (flow = 'w')) $$;


--
-- Name: _fresh("char", bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._fresh(flow "char", period bigint, phase bigint, ts bigint, at bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select case flow when 'g' then greatest(-210866803200000000, phase + tollgate._step(at, phase, period) * period)
                     when 'f' then coalesce(ts + (at - ts) / period * period, at)
                     else at end $$;


--
-- Name: _gained("char", bigint, bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._gained(flow "char", rate bigint, period bigint, phase bigint, ts bigint, at bigint) RETURNS numeric
    LANGUAGE sql IMMUTABLE
    AS $$
    select case flow when 'c' then div(rate::numeric * (at - ts), period)
                     when 'f' then rate::numeric * ((at - ts) / period)
                     when 'g' then rate::numeric
                                   * (tollgate._step(at, phase, period) - tollgate._step(ts, phase, period))
                     else 0 end $$;


--
-- Name: _hash(bytea); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._hash(bytes bytea) RETURNS numeric
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    hi int8 := 3421674724; lo int8 := 2216829733; h numeric; factor numeric;
begin
    for i in 0 .. octet_length(bytes) - 1 loop
        lo := lo # get_byte(bytes, i);
        hi := (hi * 435 + ((lo * 435) >> 32) + ((lo & 16777215) << 8)) & 4294967295;
        lo := (lo * 435) & 4294967295;
    end loop;
    foreach factor in array array[18397679294719823053, 14181476777654086739] loop
        h := mod((hi::numeric * 4294967296 + (lo # (hi >> 1))) * factor, 18446744073709551616);
        hi := div(h, 4294967296);
        lo := mod(h, 4294967296);
    end loop;
    return hi::numeric * 4294967296 + (lo # (hi >> 1));
end $$;


--
-- Name: _insert(text, text, text, "char", bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._insert(storage text, limit_name text, key text, flow "char", value bigint, ts bigint, full_at bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    if storage = 'durable' then
        insert into tollgate.durable (part, name, key, shard, value, ts, full_at, list)
        values (0, limit_name, key, 0, value, tollgate._instant(ts), tollgate._instant(full_at),
                case flow when 'w' then array[3]::int8[] end) on conflict do nothing;
    else
        insert into tollgate.ephemeral (part, name, key, shard, value, ts, full_at)
        values (0, limit_name, key, 0, value, tollgate._instant(ts), tollgate._instant(full_at)) on conflict do nothing;
    end if;
    return found;
end $$;


--
-- Name: _instant(bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._instant(micros bigint) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    select timestamptz 'epoch' + (micros / 3600000000)::float8 * interval '1 hour'
                               + (micros % 3600000000)::float8 * interval '1 microsecond' $$;


--
-- Name: _is_live(timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._is_live(starts_at timestamp with time zone, ends_at timestamp with time zone, set_at timestamp with time zone, at timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$ select (starts_at <= set_at or at >= starts_at) and at < ends_at $$;


--
-- Name: _is_over(bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._is_over(ts bigint, full_at bigint, now bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$ select coalesce(full_at >= ts and full_at <= greatest(now, ts) and full_at < 8210266876799999999, false) $$;


--
-- Name: _key_of(text[], oid); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._key_of(arguments text[], of_table oid) RETURNS text
    LANGUAGE plpgsql
    AS $_$
declare
    missing text := (select a.name from unnest(arguments) with ordinality a (name, place)
                      where a.place > 1 and not exists (select from pg_attribute c
                                where c.attrelid = of_table and c.attname = a.name and c.attnum > 0
                                  and not c.attisdropped and c.attgenerated <> 'v') limit 1);
begin
    if missing is not null then
        raise exception using errcode = 'TG002',
            -- Arguments of triggers count from 0.
            message = format('limit %L: table %s stores no column %L', arguments[0], of_table::regclass, missing),
            hint = 'Behind the limit, name columns of the table in the arguments of the trigger.';
    end if;
    return coalesce((select format('tollgate.key(%s) collate "C"', string_agg(format(
                         'case when %1$I is not null then format(''%%s'', %1$I) end', a.name), ', ' order by a.place))
                       from unnest(arguments) with ordinality a (name, place)
                      where a.place > 1 having count(*) > 0), quote_literal(''));
end $_$;


--
-- Name: _limit(text, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._limit(limit_name text, of_key text) RETURNS TABLE(kind text, shards smallint, storage text, flow "char", rate bigint, period bigint, most bigint, max_reserved bigint, phase bigint, is_overridden boolean, effect text, ends_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
    select d.kind, d.shards, d.storage, d.flow, d.rate, d.period,
           case d.flow when 'w' then 9223372036854775807 else d.capacity end, d.max_reserved,
           case when d.flow = 'g' then coalesce(d.start, tollgate._spread(limit_name, of_key, d.period)) else 0 end,
           exists (select from tollgate.overrides o where o.name = limit_name and o.key = of_key)
           or exists (select from tollgate.overrides o where o.name = limit_name and o.key = ''),
           null::text, null::timestamptz
      from tollgate.limits d where d.name = limit_name $$;


--
-- Name: _lock(text, text, text, "char", timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._lock(storage text, limit_name text, of_key text, flow "char", as_of timestamp with time zone) RETURNS tollgate._row
    LANGUAGE plpgsql
    AS $$
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
        l.mine := tollgate._insert(storage, limit_name, of_key, flow, 0, now, now);
        exit when l.mine;
    end loop;
    return l;
end $$;


--
-- Name: _max_keys(); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._max_keys() RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$select 2000$$;


--
-- Name: _micros(timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._micros(at timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$ select (extract(epoch from at) * 1000000)::int8 $$;


--
-- Name: _overridden(text, text, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._overridden(limit_name text, of_key text, as_of timestamp with time zone) RETURNS TABLE(kind text, shards smallint, storage text, flow "char", rate bigint, period bigint, most bigint, max_reserved bigint, phase bigint, is_overridden boolean, effect text, ends_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
    select d.kind, d.shards, d.storage, d.flow,
           case when s.share is null then coalesce(n.rate, d.rate)
                else greatest(div(coalesce(n.rate, d.rate)::numeric * s.share::numeric, 1000000::numeric)::int8,
                              d.shards) end,
           coalesce(n.period, d.period),
           case d.flow when 'w' then 9223372036854775807 else coalesce(n.capacity, d.capacity) end,
           coalesce(n.max_reserved, d.max_reserved),
           case when d.flow = 'g' then coalesce(d.start, tollgate._spread(limit_name, of_key,
                                                coalesce(n.period, d.period))) else 0 end,
           n.rate is not null or s.share is not null, r.effect, r.ends_at
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
           where tollgate._is_live(o.starts_at, o.ends_at, o.set_at, c.at) and o.effect = 'slowed' and d.flow <> 'w'
      ) s on true $$;


--
-- Name: _overruled(text, timestamp with time zone, text, numeric, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._overruled(effect text, ends_at timestamp with time zone, limit_name text, cost numeric, clock timestamp with time zone) RETURNS tollgate.decision
    LANGUAGE sql STABLE
    AS $$
    select case effect
        when 'unlimited' then row(true, cost, null, clock, null, null, null, null, clock)::tollgate.decision
        else row(false, 0, 0.000000, null, nullif(ends_at, 'infinity'), nullif(ends_at, 'infinity') - clock,
                 extract(epoch from nullif(ends_at, 'infinity') - clock)::float8, limit_name, clock)::tollgate.decision
        end $$;


--
-- Name: _parts(); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._parts() RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$select 0$$;


--
-- Name: _print(text, text, text, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._print(verb text, limit_name text, key text, micros bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
    h numeric; bytes bytea := decode('ff00', 'hex');
begin
    for i in reverse 8 .. 1 loop
        bytes := bytes || substr(int8send(micros), i, 1);
    end loop;
    h := mod(tollgate._hash(convert_to(left(verb, 1), 'UTF8') || decode(repeat('00', 17), 'hex'))
             + tollgate._hash(convert_to(limit_name, 'UTF8') || decode('ff', 'hex') || convert_to(key, 'UTF8')
                              || bytes),
             18446744073709551616);
    return h - case when h >= 9223372036854775808 then 18446744073709551616 else 0 end;
end $$;


--
-- Name: _reached("char", bigint, bigint, bigint, numeric, bigint, bigint, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._reached(flow "char", rate bigint, period bigint, phase bigint, value numeric, ts bigint, full_at bigint, target numeric) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select case when value >= target then ts else least(
        case when flow = 'w' then 8210266876799999999 else tollgate._clamp(
            case when flow = 'g' then phase + tollgate._step(ts, phase, period) * period else ts end
            + case when flow = 'c' then div((target - value) * period + (rate - 1), rate)
                   else div(target - value + (rate - 1), rate) * period end) end,
        case when full_at >= ts and target <= 0 then full_at end) end $$;


--
-- Name: _reject(text, text, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._reject(limit_name text, key text, amount numeric) RETURNS void
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: _remove(text, text, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._remove(storage text, limit_name text, of_key text) RETURNS void
    LANGUAGE sql
    AS $$
    delete from tollgate.durable r where storage = 'durable'
       and r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2;
    delete from tollgate.ephemeral r where storage = 'ephemeral'
       and r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2 $$;


--
-- Name: _report(text, text, text, text, bigint, timestamp with time zone, timestamp with time zone, text, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._report(limit_name text, of_key text, label text, effect text, share bigint, clock timestamp with time zone, ends_at timestamp with time zone, reason text, was_set_at timestamp with time zone) RETURNS tollgate.override
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_variable
declare
    written tollgate.override;
begin
    if pg_try_advisory_xact_lock(
           hash_record_extended(row('tollgate.overrides'::text, limit_name, 'reports'::text), 0)) then
        delete from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key <> of_key collate "C" and o.label in ('slowdown', 'pause')
           and o.ends_at <= clock;
    end if;
    insert into tollgate.overrides as o (name, key, label, effect, rate, starts_at, ends_at, reason, set_by, set_at)
    values (limit_name, of_key, label, effect, share, clock, ends_at, reason, session_user, clock)
        on conflict on constraint overrides_pkey do update
       set effect = excluded.effect, rate = excluded.rate, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
           reason = excluded.reason, set_by = excluded.set_by, set_at = excluded.set_at
     where was_set_at is not distinct from o.set_at;
    if not found then
        return null;
    end if;
    select o.* into written from tollgate.overrides o
     where o.name = limit_name collate "C" and o.key = of_key collate "C" and o.label = label collate "C";
    return written;
exception when integrity_constraint_violation or datetime_field_overflow then
    raise exception using errcode = 'TG002', detail = sqlerrm,
        message = format('limit %L: its name or its instants are not valid', limit_name);
end $$;


--
-- Name: _settle("char", bigint, bigint, bigint, bigint, boolean, bigint, bigint, bigint, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._settle(flow "char", rate bigint, period bigint, value bigint, ts bigint, is_listed boolean, full_at bigint, now bigint, until bigint, back numeric) RETURNS tollgate._verdict
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v tollgate._verdict; is_missing bool := value is null or tollgate._is_over(ts, full_at, now);
    total numeric := case when is_missing then 0 else value end + back;
begin
    if back = 0 or flow <> 'w' and back > 0 and (is_missing or is_listed or flow = 'g' and ts > until) then
        return v;
    elsif total < -9223372036854775808 then
        raise exception using errcode = 'TG003', message = 'a debt this deep does not fit';
    elsif total > 9223372036854775807 then
        raise exception using errcode = 'TG007', message = 'a balance this large does not fit';
    end if;
    v.new_value := total;
    v.new_ts := case when is_missing then greatest(now, ts) else ts end;
    full_at := case when is_missing then v.new_ts else full_at end;
    v.full_at := case when flow = 'w' then case total when 0 then v.new_ts else 8210266876799999999 end
                      when back > 0 or full_at < v.new_ts then full_at
                      else least(tollgate._clamp(full_at + div(rate - 1 - back, rate) * period), greatest(full_at,
                          tollgate._clamp(v.new_ts + div(rate - 1 - least(total, 0), rate) * period))) end;
    return v;
end $$;


--
-- Name: _share(bigint, timestamp with time zone, timestamp with time zone, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._share(share bigint, starts_at timestamp with time zone, ends_at timestamp with time zone, at timestamp with time zone) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select share + div((1000000 - share)::numeric * greatest(floor(extract(epoch from at - starts_at)), 0),
                       extract(epoch from ends_at - starts_at))::int8 $$;


--
-- Name: _spread(text, text, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._spread(limit_name text, key text, period bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select div(tollgate._hash(convert_to(limit_name, 'UTF8') || decode('ff', 'hex') || convert_to(key, 'UTF8'))
               * period, 18446744073709551616)::int8 $$;


--
-- Name: _stands("char", bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._stands(flow "char", period bigint, phase bigint, ts bigint, at bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select case when flow = 'g' and tollgate._step(at, phase, period) <= tollgate._step(ts, phase, period) then ts
                else tollgate._fresh(flow, period, phase, ts, at) end $$;


--
-- Name: _step(bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._step(at bigint, phase bigint, period bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ select (at - phase) / period - case when (at - phase) % period < 0 then 1 else 0 end $$;


--
-- Name: _tokens(numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._tokens(amount numeric) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    select case when amount between 0 and 9223372036854.775807 and trunc(amount, 6) = amount
                then (amount * 1000000)::int8 end $$;


--
-- Name: _whom(text, text, boolean); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._whom(limit_name text, key text, every_key boolean) RETURNS text
    LANGUAGE plpgsql
    AS $$ begin
    if (limit_name <> '' and case when every_key then key is null else key <> '' and octet_length(key) <= 512 end)
       is not true then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: name a key of 1 to 512 bytes, or say every_key => true', limit_name);
    end if;
    return coalesce(key, '');
end $$;


--
-- Name: _write(text, text, text, "char", bigint, timestamp with time zone, timestamp with time zone, bigint, bigint, bigint); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate._write(storage text, limit_name text, of_key text, flow "char", seen_value bigint, seen timestamp with time zone, seen_full timestamp with time zone, new_value bigint, new_ts bigint, new_full_at bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
    mark int8[] := case flow when 'w' then array[3]::int8[] end;
begin
    if storage = 'durable' then
        update tollgate.durable r
           set value = new_value, ts = tollgate._instant(new_ts), full_at = tollgate._instant(new_full_at), list = mark
         where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2
           and (seen is null or r.value = seen_value and r.ts = seen and r.list is not distinct from mark
                                and r.full_at = seen_full);
    else
        update tollgate.ephemeral r
           set value = new_value, ts = tollgate._instant(new_ts), full_at = tollgate._instant(new_full_at), list = mark
         where r.part = 0::int2 and r.name = limit_name and r.key = of_key and r.shard = 0::int2
           and (seen is null or r.value = seen_value and r.ts = seen and r.list is not distinct from mark
                                and r.full_at = seen_full);
    end if;
    return found;
end $$;


--
-- Name: balance(text, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.balance(limit_name text, key text) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return (tollgate._ask(limit_name collate "C", nullif(key, ''), 0, true, true, null)).remaining; end $$;


--
-- Name: cancel(text, text, numeric, timestamp with time zone, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.cancel(limit_name text, key text, charged numeric, decided_at timestamp with time zone, ready_at timestamp with time zone) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._change('cancel', limit_name collate "C", nullif(key, ''), charged, 0, decided_at, ready_at,
                            null, null, null);
end $$;


--
-- Name: check(text, text, numeric, numeric, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate."check"(limit_name text, key text, cost numeric DEFAULT 1, up_to numeric DEFAULT NULL::numeric, leaving numeric DEFAULT NULL::numeric) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, true, null, up_to, leaving); end $$;


--
-- Name: check_all(tollgate.request[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.check_all(requests tollgate.request[]) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask_all(requests, false, true, null); end $$;


--
-- Name: consume(text, text, numeric, numeric, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.consume(limit_name text, key text, cost numeric DEFAULT 1, up_to numeric DEFAULT NULL::numeric, leaving numeric DEFAULT NULL::numeric) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, false, null, up_to, leaving);
end $$;


--
-- Name: consume_all(tollgate.request[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.consume_all(requests tollgate.request[]) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask_all(requests, false, false, null); end $$;


--
-- Name: consume_global(text, numeric, numeric, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.consume_global(limit_name text, cost numeric DEFAULT 1, up_to numeric DEFAULT NULL::numeric, leaving numeric DEFAULT NULL::numeric) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask(limit_name collate "C", '', cost, false, false, null, up_to, leaving); end $$;


--
-- Name: credit(text, text, numeric, text, interval); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.credit(limit_name text, key text, amount numeric, once text DEFAULT NULL::text, kept interval DEFAULT '31 days'::interval) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._change('credit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null);
end $$;


--
-- Name: debit(text, text, numeric, text, interval); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.debit(limit_name text, key text, amount numeric, once text DEFAULT NULL::text, kept interval DEFAULT '31 days'::interval) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._change('debit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null);
end $$;


--
-- Name: define(text, text, numeric, interval, numeric, numeric, interval, text, integer, integer); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.define(limit_name text, kind text, rate numeric DEFAULT 0, period interval DEFAULT '00:00:00'::interval, capacity numeric DEFAULT NULL::numeric, max_reserved numeric DEFAULT 0, start interval DEFAULT NULL::interval, storage text DEFAULT 'durable'::text, shards integer DEFAULT 1, resolution integer DEFAULT NULL::integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$
#variable_conflict use_variable
begin
    capacity := coalesce(capacity, rate);
    if (tollgate._tokens(rate) + tollgate._tokens(capacity)::numeric + tollgate._tokens(max_reserved)) is null
       or capacity = 0 and max_reserved = 0 and kind <> 'wallet'
       or extract(year from period) <> 0 or extract(month from period) <> 0
       or extract(year from start) <> 0 or extract(month from start) <> 0 then
        raise exception using errcode = 'TG002', message = format('limit %L: this is no definition', limit_name),
            hint = 'Amounts have at most six decimals, periods no months, and a capacity of 0 needs reservations.';
    end if;
    insert into tollgate.limits (name, kind, rate, period, capacity, max_reserved, start, resolution, shards, storage)
    values (limit_name, kind, tollgate._tokens(rate), extract(epoch from period) * 1000000, tollgate._tokens(capacity),
            tollgate._tokens(max_reserved), extract(epoch from start) * 1000000, resolution, shards, storage)
        on conflict (name) do update set kind = excluded.kind, rate = excluded.rate, period = excluded.period,
           capacity = excluded.capacity, max_reserved = excluded.max_reserved, start = excluded.start,
           resolution = excluded.resolution, shards = excluded.shards, storage = excluded.storage;
-- The last one is that of an infinite span.
exception when integrity_constraint_violation or numeric_value_out_of_range or feature_not_supported then
    raise exception using errcode = 'TG002', message = format('limit %L: this is no definition', limit_name),
        detail = sqlerrm;
end $$;


--
-- Name: granted(tollgate.decision); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.granted(decision tollgate.decision) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: key(text[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.key(VARIADIC parts text[]) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
    select (select case when pg_catalog.count(*) = pg_catalog.count(part) then
                       pg_catalog.string_agg(pg_catalog.replace(pg_catalog.replace(
                           part collate pg_catalog."C", E'\\', E'\\\\'), '|', E'\\|'), '|' order by place) end
              from pg_catalog.unnest(parts) with ordinality p (part, place)) $$;


--
-- Name: limit_inserts(); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.limit_inserts() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "DateStyle" TO 'ISO, YMD'
    SET "TimeZone" TO 'UTC'
    SET "IntervalStyle" TO 'postgres'
    SET bytea_output TO 'hex'
    SET extra_float_digits TO '1'
    SET lc_monetary TO 'C'
    SET quote_all_identifiers TO 'off'
    SET row_security TO 'off'
    AS $_$
declare
    requests tollgate.request[];
begin
    -- Where no transition table has this name, `inserted` would be a temporary view of the caller's. The definition is
    -- that of now; the columns of pg_trigger are those of the caller's snapshot. Even that of now is another where an
    -- earlier trigger of the statement has replaced this one, so no temporary relation may have the name.
    if to_regclass('pg_temp.inserted') is not null
       or not exists (select from pg_trigger t where t.tgrelid = tg_relid and t.tgname = tg_name
                      and starts_with(pg_get_triggerdef(t.oid), format(
                          'CREATE TRIGGER %I AFTER INSERT ON %I.%I REFERENCING NEW TABLE AS %I FOR EACH STATEMENT ',
                          tg_name, tg_table_schema, tg_table_name, 'inserted'))) then
        raise exception using errcode = 'TG002',
            message = format('trigger %I: limit_inserts has no transition table named inserted', tg_name),
            hint = 'Create it after insert, referencing new table as inserted, for each statement. No temporary table '
                   'may be named inserted.';
    end if;
    execute 'select array_agg(row($1, k.key, k.count, $2)::tollgate.request)
               from (select ' || tollgate._key_of(tg_argv, tg_relid)
            || ' as key, count(*) as count from inserted group by 1) k'
       into requests using tg_argv[0], tg_nargs = 1;
    if requests is not null then
        perform tollgate.granted(tollgate._ask_all(requests, false, false, null));
    end if;
    return null;
end $_$;


--
-- Name: limit_rows(); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.limit_rows() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "DateStyle" TO 'ISO, YMD'
    SET "TimeZone" TO 'UTC'
    SET "IntervalStyle" TO 'postgres'
    SET bytea_output TO 'hex'
    SET extra_float_digits TO '1'
    SET lc_monetary TO 'C'
    SET quote_all_identifiers TO 'off'
    SET row_security TO 'off'
    AS $_$
declare
    key text;
begin
    if tg_level <> 'ROW' or tg_op = 'DELETE' then
        raise exception using errcode = 'TG002',
            message = format('trigger %I: limit_rows has no new row here', tg_name),
            hint = 'Create it before insert, for each row.';
    end if;
    execute 'select ' || tollgate._key_of(tg_argv, tg_relid) || ' from (select ($1).*) new_row' into key using new;
    perform tollgate.granted(tollgate._ask(tg_argv[0], case when key <> '' or tg_nargs = 1 then key end, 1, false,
                                           false, null));
    return new;
end $_$;


--
-- Name: pause(text, text, boolean, timestamp with time zone, interval); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.pause(limit_name text, key text DEFAULT NULL::text, every_key boolean DEFAULT false, until timestamp with time zone DEFAULT NULL::timestamp with time zone, lasting interval DEFAULT NULL::interval) RETURNS tollgate.override
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$
#variable_conflict use_variable
declare
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key);
    clock timestamptz; ends_at timestamptz; is_over bool; was tollgate.override; is_live bool;
    written tollgate.override;
begin
    if num_nonnulls(until, lasting) <> 1 then
        raise exception using errcode = 'TG002', message = format('limit %L: say until or lasting', limit_name);
    end if;
    for attempt in 0 .. 2 loop
        if attempt = 1 then
            perform pg_advisory_xact_lock(
                hash_record_extended(row('tollgate.overrides'::text, limit_name, of_key, 'pause'::text), 0));
        end if;
        clock := clock_timestamp();
        ends_at := least(until, clock + greatest('0', least(lasting, '1 day')), clock + interval '1 day');
        is_over := ends_at <= clock;
        ends_at := to_timestamp(ceil(extract(epoch from ends_at)));
        select o.* into was from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key = of_key and o.label = 'pause';
        is_live := tollgate._is_live(was.starts_at, was.ends_at, was.set_at, clock);
        if is_over or is_live and was.ends_at >= ends_at then
            return case when is_live then was end;
        end if;
        continue when attempt = 0;
        written := tollgate._report(limit_name, of_key, 'pause', 'deny', null, clock, ends_at,
                                    'callers were asked to wait', was.set_at);
        if written.name is not null then
            return written;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = format(
        'limit %L: somebody else reports on it', limit_name);
end $$;


--
-- Name: remove_override(text, text, boolean, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.remove_override(limit_name text, key text DEFAULT NULL::text, every_key boolean DEFAULT false, label text DEFAULT ''::text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$
#variable_conflict use_variable
declare
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key);
begin
    if label is null then
        raise exception using errcode = 'TG002', message = format('limit %L: the label is null', limit_name);
    end if;
    delete from tollgate.overrides o
     where o.name = limit_name collate "C" and o.key = of_key and o.label = label collate "C";
    return found;
end $$;


--
-- Name: request(text, text, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.request(limit_name text, key text, cost numeric DEFAULT 1) RETURNS tollgate.request
    LANGUAGE sql IMMUTABLE
    AS $$ select row(limit_name, key, cost, false)::tollgate.request $$;


--
-- Name: request_global(text, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.request_global(limit_name text, cost numeric DEFAULT 1) RETURNS tollgate.request
    LANGUAGE sql IMMUTABLE
    AS $$ select row(limit_name, '', cost, true)::tollgate.request $$;


--
-- Name: reserve(text, text, numeric); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.reserve(limit_name text, key text, cost numeric DEFAULT 1) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, true, false, null); end $$;


--
-- Name: reserve_all(tollgate.request[]); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.reserve_all(requests tollgate.request[]) RETURNS tollgate.decision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin return tollgate._ask_all(requests, true, false, null); end $$;


--
-- Name: reset(text, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.reset(limit_name text, key text) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._change('reset', limit_name collate "C", nullif(key, ''), 0, 0, null, null, null, null, null);
end $$;


--
-- Name: set_override(text, text, text, numeric, interval, numeric, numeric, text, boolean, timestamp with time zone, timestamp with time zone, interval, text, text, text); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.set_override(limit_name text, key text DEFAULT NULL::text, effect text DEFAULT 'numbers'::text, rate numeric DEFAULT NULL::numeric, period interval DEFAULT NULL::interval, capacity numeric DEFAULT NULL::numeric, max_reserved numeric DEFAULT NULL::numeric, kind text DEFAULT NULL::text, every_key boolean DEFAULT false, starts_at timestamp with time zone DEFAULT NULL::timestamp with time zone, ends_at timestamp with time zone DEFAULT NULL::timestamp with time zone, lasting interval DEFAULT NULL::interval, reason text DEFAULT NULL::text, set_by text DEFAULT NULL::text, label text DEFAULT ''::text) RETURNS tollgate.override_set
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$
#variable_conflict use_variable
declare
    d tollgate.limits; clock timestamptz; fault text; micros int8; was tollgate.override;
begin
    key := tollgate._whom(limit_name, key, every_key);
    -- Calls take turns, so that each returns the override that it replaces, and is dated after it.
    perform pg_advisory_xact_lock(hash_record_extended(row('tollgate.overrides'::text, limit_name, key, label), 0));
    clock := clock_timestamp();
    select l.* into d from tollgate.limits l where l.name = limit_name collate "C";
    starts_at := coalesce(starts_at, clock);
    fault := case
        when effect in ('numbers', 'deny', 'unlimited') is not true
        then 'this is no effect: numbers, deny, unlimited'
        when (octet_length(label) <= 255) is not true then 'the label is longer than 255 bytes, or null'
        when label in ('slowdown', 'pause') then 'this label belongs to slow_down and pause'
        when (octet_length(reason) between 1 and 500) is not true then 'the reason has no text of 1 to 500 bytes'
        when (octet_length(coalesce(set_by, session_user)) between 1 and 255) is not true
        then 'who sets it has no name of 1 to 255 bytes'
        when ends_at is not null and lasting is not null then 'it has two ends: say ends_at or lasting'
        when coalesce(ends_at, starts_at + lasting, 'infinity') <= greatest(starts_at, clock)
        then 'it ends before it starts, or is over'
        when effect <> 'numbers' and num_nonnulls(rate, period, capacity, max_reserved, kind) > 0
        then 'only numbers have a rate, a period, a capacity, max_reserved and a kind'
        when effect = 'numbers' and kind <> d.kind
        then format('it is a %s, and these are numbers of a %s', d.kind, kind)
        when max_reserved > 0 and d.storage = 'ephemeral' then 'an ephemeral limit takes no reservations' end;
    if fault is not null then
        raise exception using errcode = 'TG002', message = format('limit %L: %s', limit_name, fault);
    end if;
    if effect = 'numbers' then
        kind := coalesce(kind, d.kind);
        if kind is null then
            perform tollgate._admit(limit_name, null, null, null, 0, 0);
        end if;
        rate := coalesce(rate, case kind when 'wallet' then 0 end);
        capacity := coalesce(capacity, rate);
        max_reserved := coalesce(max_reserved, d.max_reserved * 0.000001, 0);
        micros := coalesce(extract(epoch from period) * 1000000, d.period, case kind when 'wallet' then 0 end);
        if tollgate._tokens(rate)::numeric + tollgate._tokens(capacity) + tollgate._tokens(max_reserved) + micros
           is null or extract(year from period) <> 0 or extract(month from period) <> 0 then
            raise exception using errcode = 'TG002', message = format('limit %L: these numbers are not valid', limit_name),
                hint = 'Name a rate. Amounts have at most six decimals. Say a period of months or years in days.';
        end if;
    end if;
    select o.* into was from tollgate.overrides o
     where o.name = limit_name collate "C" and o.key = key collate "C" and o.label = label collate "C";
    if starts_at > clock and tollgate._is_live(was.starts_at, was.ends_at, was.set_at, clock) then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: an override of label %L is live, and this one begins later (give it another label, or remove '
            'that one)', limit_name, label);
    end if;
    insert into tollgate.overrides (name, key, label, effect, kind, rate, period, capacity, max_reserved, starts_at,
                                    ends_at, reason, set_by, set_at)
    values (limit_name, key, label, effect, kind, tollgate._tokens(rate), micros, tollgate._tokens(capacity),
            tollgate._tokens(max_reserved), starts_at, coalesce(ends_at, starts_at + lasting, 'infinity'), reason,
            coalesce(set_by, session_user), clock)
        on conflict on constraint overrides_pkey do update
       set effect = excluded.effect, kind = excluded.kind, rate = excluded.rate, period = excluded.period,
           capacity = excluded.capacity, max_reserved = excluded.max_reserved, starts_at = excluded.starts_at,
           ends_at = excluded.ends_at, reason = excluded.reason, set_by = excluded.set_by, set_at = excluded.set_at;
    return row(was, array(
        select row(o.*)::tollgate.override from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key in (key collate "C", '')
           and (o.key <> key collate "C" or o.label <> label collate "C")
           and tollgate._is_live(o.starts_at, o.ends_at, o.set_at, clock)
         order by o.key = '', o.set_at desc, o.label desc))::tollgate.override_set;
-- The last two are those of an instant that does not fit, and of an infinite span.
exception when integrity_constraint_violation or numeric_value_out_of_range or datetime_field_overflow
            or feature_not_supported then
    raise exception using errcode = 'TG002', detail = sqlerrm,
        message = format('limit %L: its name, its numbers or its instants are not valid', limit_name);
end $$;


--
-- Name: settle(text, text, numeric, numeric, timestamp with time zone); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.settle(limit_name text, key text, charged numeric, actual numeric, decided_at timestamp with time zone) RETURNS numeric
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$ begin
    return tollgate._change('settle', limit_name collate "C", nullif(key, ''), charged, actual, decided_at, decided_at,
                            null, null, null);
end $$;


--
-- Name: slow_down(text, text, boolean, integer, integer, interval, interval); Type: FUNCTION; Schema: tollgate; Owner: -
--

CREATE FUNCTION tollgate.slow_down(limit_name text, key text DEFAULT NULL::text, every_key boolean DEFAULT false, percent integer DEFAULT 70, least_percent integer DEFAULT 5, recovers interval DEFAULT '00:01:00'::interval, cool_down interval DEFAULT '00:00:02'::interval) RETURNS tollgate.override
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET row_security TO 'off'
    AS $$
#variable_conflict use_variable
declare
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key);
    clock timestamptz; fault text; was tollgate.override; is_live bool; present int8; share int8;
    written tollgate.override;
begin
    fault := case
        when (percent between 1 and 99) is not true then 'percent is what a report leaves of the rate, from 1 to 99'
        when (least_percent between 1 and 99) is not true
        then 'least_percent is the least that reports leave of the rate, from 1 to 99'
        when (recovers between '1 second' and '1 day') is not true
        then 'recovers is the time in which the whole rate would grow back, of one second to one day'
        when (cool_down between '0' and '1 day') is not true
        then 'cool_down is the time between two cuts, of one day at most'
        when exists (select from tollgate.limits l where l.name = limit_name collate "C"
                                                     and l.kind in ('wallet', 'concurrency'))
        then 'it has no rate that could be slowed down' end;
    if fault is not null then
        raise exception using errcode = 'TG002', message = format('limit %L: %s', limit_name, fault);
    end if;
    -- Most reports come within the cool-down, and take no lock. The others take turns on their node.
    for attempt in 0 .. 2 loop
        if attempt = 1 then
            perform pg_advisory_xact_lock(
                hash_record_extended(row('tollgate.overrides'::text, limit_name, of_key, 'slowdown'::text), 0));
        end if;
        clock := clock_timestamp();
        select o.* into was from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key = of_key and o.label = 'slowdown';
        is_live := tollgate._is_live(was.starts_at, was.ends_at, was.set_at, clock);
        -- A clock that has stepped back may show an earlier instant.
        if is_live and clock > was.starts_at - cool_down and clock < was.starts_at + cool_down then
            return was;
        end if;
        continue when attempt = 0;
        present := case when is_live then tollgate._share(was.rate, was.starts_at, was.ends_at, clock) else 1000000 end;
        -- A reporter with a higher least share does not speed the limit up.
        share := greatest(1, least(present, greatest(least_percent * 10000, present * percent / 100)));
        written := tollgate._report(limit_name, of_key, 'slowdown', 'slowed', share, clock,
                                    clock + (1000000 - share) * 0.000001::float8 * recovers, 'trouble was reported',
                                    was.set_at);
        if written.name is not null then
            return written;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = format(
        'limit %L: somebody else reports on it', limit_name);
end $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: receipts; Type: TABLE; Schema: service; Owner: -
--

CREATE TABLE service.receipts (
    limit_name text NOT NULL,
    receipt jsonb NOT NULL
);


--
-- Name: durable; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE TABLE tollgate.durable (
    part smallint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    shard smallint NOT NULL,
    value bigint NOT NULL,
    ts timestamp with time zone NOT NULL,
    full_at timestamp with time zone NOT NULL,
    list bigint[],
    CONSTRAINT durable_part CHECK ((part = 0)),
    CONSTRAINT durable_row CHECK (((octet_length(name) <= 255) AND (octet_length(key) <= 512) AND (shard >= 0) AND (LEAST(ts, full_at) > '-infinity'::timestamp with time zone) AND (GREATEST(ts, full_at) < '262143-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='90', vacuum_truncate=off);


--
-- Name: ephemeral; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE UNLOGGED TABLE tollgate.ephemeral (
    part smallint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    shard smallint NOT NULL,
    value bigint NOT NULL,
    ts timestamp with time zone NOT NULL,
    full_at timestamp with time zone NOT NULL,
    list bigint[],
    CONSTRAINT ephemeral_part CHECK ((part = 0)),
    CONSTRAINT ephemeral_row CHECK (((octet_length(name) <= 255) AND (octet_length(key) <= 512) AND (shard >= 0) AND (LEAST(ts, full_at) > '-infinity'::timestamp with time zone) AND (GREATEST(ts, full_at) < '262143-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='90', vacuum_truncate=off);


--
-- Name: balances; Type: VIEW; Schema: tollgate; Owner: -
--

CREATE VIEW tollgate.balances AS
 WITH rows AS (
         SELECT 'ephemeral'::text AS storage,
            ephemeral.name,
            ephemeral.key,
            ephemeral.shard,
            ephemeral.value,
            ephemeral.ts,
            ephemeral.full_at,
            ephemeral.part,
            ephemeral.list
           FROM tollgate.ephemeral
        UNION ALL
         SELECT 'durable'::text AS text,
            durable.name,
            durable.key,
            durable.shard,
            durable.value,
            durable.ts,
            durable.full_at,
            durable.part,
            durable.list
           FROM tollgate.durable
        )
 SELECT rows.name,
    rows.key,
    rows.shard,
    rows.storage,
    (GREATEST((- (rows.value)::numeric), (0)::numeric) * 0.000001) AS used,
        CASE
            WHEN (rows.list[1] = (3)::bigint) THEN ((rows.value)::numeric * 0.000001)
            ELSE NULL::numeric
        END AS balance,
    rows.ts AS as_of,
    rows.full_at,
    GREATEST((rows.full_at - clock_timestamp()), '00:00:00'::interval) AS full_in,
    ((rows.full_at >= rows.ts) AND (rows.full_at <= clock_timestamp())) AS is_full,
    GREATEST((rows.ts - clock_timestamp()), '00:00:00'::interval) AS ahead,
    (COALESCE(( SELECT sum(entry.number) AS sum
           FROM unnest(rows.list) WITH ORDINALITY entry(number, place)
          WHERE (((rows.list[1] = (1)::bigint) AND (entry.place > (1)::bigint) AND ((entry.place % (2)::bigint) = (1)::bigint)) OR ((rows.list[1] = (2)::bigint) AND ((entry.place % (4)::bigint) = (3)::bigint)))), (0)::numeric) * 0.000001) AS listed,
        CASE
            WHEN (rows.list[2] >= '-210866803200000000'::bigint) THEN (('1970-01-01 00:00:00+00'::timestamp with time zone + (((rows.list[2] / '3600000000'::bigint))::double precision * '01:00:00'::interval)) + (((rows.list[2] % '3600000000'::bigint))::double precision * '00:00:00.000001'::interval))
            ELSE NULL::timestamp with time zone
        END AS leaves_at,
    rows.part,
    rows.list
   FROM rows;


--
-- Name: calls; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE TABLE tollgate.calls (
    part smallint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    asked bigint NOT NULL,
    charges json NOT NULL,
    answer json,
    charged_at timestamp with time zone NOT NULL,
    reported bigint DEFAULT 0 NOT NULL,
    lapses_at timestamp with time zone,
    kept_until timestamp with time zone NOT NULL,
    used boolean DEFAULT false NOT NULL,
    CONSTRAINT calls_part CHECK ((part = 0)),
    CONSTRAINT calls_row CHECK (((octet_length(name) <= 255) AND (octet_length(key) <= 512) AND ((octet_length(id) >= 1) AND (octet_length(id) <= 255)) AND (LEAST(charged_at, kept_until, lapses_at) > '-infinity'::timestamp with time zone) AND (GREATEST(charged_at, kept_until, lapses_at) < '262143-01-01 00:00:00+00'::timestamp with time zone)))
)
WITH (fillfactor='80', vacuum_truncate=off);


--
-- Name: limits; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE TABLE tollgate.limits (
    name text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL,
    rate bigint NOT NULL,
    period bigint NOT NULL,
    capacity bigint NOT NULL,
    max_reserved bigint DEFAULT 0 NOT NULL,
    start bigint,
    resolution smallint,
    shards smallint DEFAULT 1 NOT NULL,
    storage text DEFAULT 'durable'::text NOT NULL,
    flow "char" GENERATED ALWAYS AS ((
CASE
    WHEN (shards > 1) THEN '-'::text
    WHEN (kind = 'token_bucket'::text) THEN 'c'::text
    WHEN (kind = 'stepped_bucket'::text) THEN 'f'::text
    WHEN (kind = 'fixed_window'::text) THEN 'g'::text
    WHEN (kind = 'wallet'::text) THEN 'w'::text
    ELSE '-'::text
END)::"char") STORED NOT NULL,
    CONSTRAINT a_kind_is_known CHECK ((kind = ANY (ARRAY['token_bucket'::text, 'fixed_window'::text, 'stepped_bucket'::text, 'sliding_window'::text, 'concurrency'::text, 'wallet'::text]))),
    CONSTRAINT a_name_has_1_to_255_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255))),
    CONSTRAINT a_rate_and_a_period_are_positive CHECK (((kind = 'wallet'::text) OR ((rate >= shards) AND ((period >= 1) AND (period <= '31536000000000000'::bigint))))),
    CONSTRAINT a_resolution_is_of_a_sliding_window CHECK (((resolution IS NULL) OR ((kind = 'sliding_window'::text) AND ((resolution >= 1) AND (resolution <= 63))))),
    CONSTRAINT a_row_can_hold_what_is_used CHECK (((max_reserved = '9223372036854775807'::bigint) OR (((capacity)::numeric + (max_reserved)::numeric) <= ('9223372036854775807'::bigint)::numeric))),
    CONSTRAINT a_start_is_of_a_fixed_window CHECK (((start IS NULL) OR ((kind = 'fixed_window'::text) AND ((start >= 0) AND (start <= (period - 1)))))),
    CONSTRAINT a_storage_is_ephemeral_or_durable CHECK ((storage = ANY (ARRAY['ephemeral'::text, 'durable'::text]))),
    CONSTRAINT a_wallet_has_no_size_and_is_durable CHECK (((kind <> 'wallet'::text) OR ((rate = 0) AND (period = 0) AND (capacity = 0) AND (shards = 1) AND (storage = 'durable'::text)))),
    CONSTRAINT numbers_are_in_range CHECK (((capacity >= 0) AND (max_reserved >= 0) AND ((shards >= 1) AND (shards <= 64)) AND ((kind <> 'concurrency'::text) OR (rate <= 1000000000)))),
    CONSTRAINT reservations_are_durable CHECK (((max_reserved = 0) OR (storage = 'durable'::text))),
    CONSTRAINT shards_are_of_token_buckets_and_fixed_windows CHECK (((shards = 1) OR (kind = ANY (ARRAY['token_bucket'::text, 'fixed_window'::text])))),
    CONSTRAINT what_counts_has_no_capacity_and_no_reservations CHECK (((kind <> ALL (ARRAY['sliding_window'::text, 'concurrency'::text])) OR ((capacity = rate) AND (max_reserved = 0))))
);


--
-- Name: overrides; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE TABLE tollgate.overrides (
    name text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    label text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    effect text NOT NULL,
    kind text,
    rate bigint,
    period bigint,
    capacity bigint,
    max_reserved bigint,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    set_by text NOT NULL,
    set_at timestamp with time zone NOT NULL,
    CONSTRAINT a_key_has_at_most_512_bytes CHECK ((octet_length(key) <= 512)),
    CONSTRAINT a_label_has_at_most_255_bytes CHECK ((octet_length(label) <= 255)),
    CONSTRAINT a_name_has_1_to_255_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255))),
    CONSTRAINT a_reason_has_1_to_500_bytes CHECK (((octet_length(reason) >= 1) AND (octet_length(reason) <= 500))),
    CONSTRAINT an_effect_is_known CHECK ((effect = ANY (ARRAY['numbers'::text, 'slowed'::text, 'deny'::text, 'unlimited'::text]))),
    CONSTRAINT it_ends_after_it_starts CHECK (((starts_at > '-infinity'::timestamp with time zone) AND (starts_at < LEAST(ends_at, '262143-01-01 00:00:00+00'::timestamp with time zone)) AND ((ends_at = 'infinity'::timestamp with time zone) OR (ends_at < '262143-01-01 00:00:00+00'::timestamp with time zone)))),
    CONSTRAINT it_was_set_at_an_instant CHECK (((set_at > '-infinity'::timestamp with time zone) AND (set_at < '262143-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT numbers_are_those_of_a_limit CHECK (((effect <> 'numbers'::text) OR ((max_reserved >= 0) AND
CASE
    WHEN (kind = 'wallet'::text) THEN ((rate = 0) AND (period = 0) AND (capacity = 0))
    WHEN (kind = ANY (ARRAY['token_bucket'::text, 'fixed_window'::text, 'stepped_bucket'::text, 'sliding_window'::text, 'concurrency'::text])) THEN ((rate > 0) AND ((period >= 1) AND (period <= '31536000000000000'::bigint)) AND (capacity >= 0) AND (((capacity)::numeric + (max_reserved)::numeric) > (0)::numeric) AND ((max_reserved = '9223372036854775807'::bigint) OR (((capacity)::numeric + (max_reserved)::numeric) <= ('9223372036854775807'::bigint)::numeric)) AND ((kind <> ALL (ARRAY['sliding_window'::text, 'concurrency'::text])) OR ((capacity = rate) AND (max_reserved = 0))) AND ((kind <> 'concurrency'::text) OR (rate <= 1000000000)))
    ELSE false
END))),
    CONSTRAINT numbers_have_a_kind_a_rate_a_period_and_a_capacity CHECK ((num_nulls(kind, rate, period, capacity, max_reserved) =
CASE effect
    WHEN 'numbers'::text THEN 0
    WHEN 'slowed'::text THEN 4
    ELSE 5
END)),
    CONSTRAINT slowed_has_a_share_of_the_rate_and_an_end CHECK (((effect <> 'slowed'::text) OR (COALESCE(((rate >= 1) AND (rate <= 999999)), false) AND (ends_at < 'infinity'::timestamp with time zone)))),
    CONSTRAINT who_has_1_to_255_bytes CHECK (((octet_length(set_by) >= 1) AND (octet_length(set_by) <= 255)))
);


--
-- Name: schema_history; Type: TABLE; Schema: tollgate; Owner: -
--

CREATE TABLE tollgate.schema_history (
    version integer NOT NULL,
    name character varying(255),
    applied_on character varying(255),
    checksum character varying(255)
);


--
-- Data for Name: receipts; Type: TABLE DATA; Schema: service; Owner: -
--

INSERT INTO service.receipts VALUES ('bucket', '{"charges": [{"key": "ada", "cost": 1, "limit": "bucket", "period": 3600000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('ephemeral_bucket', '{"charges": [{"key": "ada", "cost": 1, "limit": "ephemeral_bucket", "period": 3600000000, "refill": 10, "storage": "ephemeral", "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('thirds', '{"charges": [{"key": "ada", "cost": 1, "limit": "thirds", "period": 60000000, "refill": 0.333333, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('everybody', '{"charges": [{"key": "", "cost": 1, "limit": "everybody", "period": 86400000000, "refill": 100, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('bounded', '{"charges": [{"key": "eu|a\\|b", "cost": 1, "limit": "bounded", "period": 86400000000, "refill": 5, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('sharded', '{"charges": [{"key": "ada", "cost": 1, "limit": "sharded", "shard": 2, "period": 3600000000, "refill": 25, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('spread_window', '{"charges": [{"key": "ada", "cost": 1, "kind": "window", "limit": "spread_window", "period": 3600000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('window', '{"charges": [{"key": "7", "cost": 1, "kind": "window", "limit": "window", "period": 86400000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('ephemeral_window', '{"charges": [{"key": "7", "cost": 1, "kind": "window", "limit": "ephemeral_window", "period": 86400000000, "refill": 10, "storage": "ephemeral", "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('period', '{"charges": [{"key": "ada", "cost": 1, "kind": "window", "limit": "period", "period": 5184000000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('steps', '{"charges": [{"key": "ada", "cost": 1, "limit": "steps", "period": 3600000000, "refill": 5, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('sliding', '{"charges": [{"key": "ada", "cost": 1, "kind": "sliding", "limit": "sliding", "until": 1700004200000000, "period": 3600000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('coarse', '{"charges": [{"key": "ada", "cost": 1, "kind": "sliding", "limit": "coarse", "until": 1700004599999999, "period": 3600000000, "refill": 10, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('once', '{"call": {"id": "order_1", "key": "ada", "limit": "once"}, "charges": [{"key": "ada", "cost": 4, "limit": "once", "period": 86400000000, "refill": 10, "ready_at": 1700000600000000}], "lapses_at": 1700087000000000}');
INSERT INTO service.receipts VALUES ('lapsing', '{"call": {"id": "01a226f363d43b1eca296809d8f66644", "key": "ada", "limit": "lapsing"}, "charges": [{"key": "ada", "cost": 4, "kind": "sliding", "limit": "lapsing", "until": 1700087000000000, "period": 86400000000, "refill": 10, "ready_at": 1700000600000000}], "lapses_at": 1700004200000000}');
INSERT INTO service.receipts VALUES ('tracked', '{"call": {"id": "01a226f363ed11366b83e4537aff07eb", "key": "ada", "limit": "tracked"}, "charges": [{"key": "ada", "cost": 4, "kind": "window", "limit": "tracked", "period": 86400000000, "refill": 10, "ready_at": 1700000600000000}], "lapses_at": 1700004200000000}');
INSERT INTO service.receipts VALUES ('leased', '{"call": {"id": "job_1", "key": "ada", "limit": "leased"}, "charges": [{"key": "ada", "cost": 1, "kind": "lease", "lease": "01a226f363f8624e81b5427012c35984", "limit": "leased", "until": 1700004200000000, "period": 3600000000, "refill": 3, "ready_at": 1700000600000000}], "lapses_at": 1700087000000000}');
INSERT INTO service.receipts VALUES ('money', '{"charges": [{"key": "acme", "cost": 30, "kind": "wallet", "limit": "money", "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('contract', '{"charges": [{"key": "acme", "cost": 1, "limit": "contract", "period": 86400000000, "refill": 5, "ready_at": 1700000600000000}]}');
INSERT INTO service.receipts VALUES ('booked', '{"charges": [{"key": "ada", "cost": 6, "limit": "booked", "period": 60000000, "refill": 1, "ready_at": 1700000900000000}]}');


--
-- Data for Name: calls; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.calls VALUES (0, 'money', 'acme', 'payment_7', -6505968518662335794, '[]', '{}', '2023-11-14 22:13:20+00', 0, NULL, '2023-12-15 22:13:20+00', false);
INSERT INTO tollgate.calls VALUES (0, 'once', 'ada', 'order_1', 3222908803921010261, '[{"limit":"once","key":"ada","cost":4,"ready_at":1700000600000000,"refill":10,"period":86400000000}]', '{}', '2023-11-14 22:23:20+00', 0, NULL, '2023-11-15 22:23:20+00', false);
INSERT INTO tollgate.calls VALUES (0, 'lapsing', 'ada', '01a226f363d43b1eca296809d8f66644', -6933738996752304088, '[{"limit":"lapsing","key":"ada","cost":4,"ready_at":1700000600000000,"kind":"sliding","until":1700087000000000,"refill":10,"period":86400000000}]', NULL, '2023-11-14 22:23:20+00', 0, '2023-11-14 23:23:20+00', '2023-11-14 23:23:20+00', false);
INSERT INTO tollgate.calls VALUES (0, 'tracked', 'ada', '01a226f363ed11366b83e4537aff07eb', -8207726490034608629, '[{"limit":"tracked","key":"ada","cost":4,"ready_at":1700000600000000,"kind":"window","refill":10,"period":86400000000}]', NULL, '2023-11-14 22:23:20+00', 0, NULL, '2023-11-14 23:23:20+00', false);
INSERT INTO tollgate.calls VALUES (0, 'leased', 'ada', 'job_1', -1956462224117433091, '[{"limit":"leased","key":"ada","cost":1,"ready_at":1700000600000000,"kind":"lease","until":1700004200000000,"refill":3,"period":3600000000,"lease":"01a226f363f8624e81b5427012c35984"}]', '{}', '2023-11-14 22:23:20+00', 0, NULL, '2023-11-15 22:23:20+00', false);


--
-- Data for Name: durable; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.durable VALUES (0, 'bucket', 'ada', 0, -1000000, '2023-11-14 22:23:20+00', '2023-11-14 22:29:20+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'thirds', 'ada', 0, -1000000, '2023-11-14 22:23:20+00', '2023-11-14 22:26:20.000181+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'everybody', '', 0, -1305556, '2023-11-14 22:23:20+00', '2023-11-14 22:42:08.000384+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'bounded', 'eu|a\|b', 0, -1965278, '2023-11-14 22:23:20+00', '2023-11-15 07:49:20.00384+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'sharded', 'ada', 1, -1000000, '2023-11-14 22:13:20+00', '2023-11-14 22:15:44+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'sharded', 'ada', 2, -1000000, '2023-11-14 22:23:20+00', '2023-11-14 22:25:44+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'spread_window', 'ada', 0, -2000000, '2023-11-14 21:46:31.118505+00', '2023-11-14 22:46:31.118505+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'window', '7', 0, -2000000, '2023-11-14 00:00:00+00', '2023-11-15 00:00:00+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'period', 'ada', 0, -2000000, '2023-11-11 22:13:20+00', '2023-12-15 16:13:20+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'steps', 'ada', 0, -2000000, '2023-11-14 22:13:20+00', '2023-11-14 23:13:20+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'sliding', 'ada', 0, -2000000, '2023-11-14 22:23:20+00', '2023-11-14 23:23:20+00', '{1,1700003600000000,1000000,1700004200000000,1000000}');
INSERT INTO tollgate.durable VALUES (0, 'coarse', 'ada', 0, -2000000, '2023-11-14 22:23:20+00', '2023-11-14 23:29:59.999999+00', '{1,1700003699999999,1000000,1700004599999999,1000000}');
INSERT INTO tollgate.durable VALUES (0, 'once', 'ada', 0, -4000000, '2023-11-14 22:23:20+00', '2023-11-15 07:59:20+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'lapsing', 'ada', 0, -4000000, '2023-11-14 22:23:20+00', '2023-11-15 22:23:20+00', '{1,1700087000000000,4000000}');
INSERT INTO tollgate.durable VALUES (0, 'tracked', 'ada', 0, -4000000, '2023-11-14 20:53:03.583726+00', '2023-11-15 20:53:03.583726+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'leased', 'ada', 0, -1000000, '2023-11-14 22:23:20+00', '2023-11-14 23:23:20+00', '{2,1700004200000000,1000000,117699367061185102,-9100294422913656444}');
INSERT INTO tollgate.durable VALUES (0, 'money', 'acme', 0, 40000000, '2023-11-14 22:23:20+00', '262142-12-31 23:59:59.999999+00', '{3}');
INSERT INTO tollgate.durable VALUES (0, 'contract', 'acme', 0, -1965278, '2023-11-14 22:23:20+00', '2023-11-15 07:49:20.00384+00', NULL);
INSERT INTO tollgate.durable VALUES (0, 'booked', 'ada', 0, -6000000, '2023-11-14 22:23:20+00', '2023-11-14 22:29:20+00', NULL);


--
-- Data for Name: ephemeral; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.ephemeral VALUES (0, 'ephemeral_bucket', 'ada', 0, -1000000, '2023-11-14 22:23:20+00', '2023-11-14 22:29:20+00', NULL);
INSERT INTO tollgate.ephemeral VALUES (0, 'ephemeral_window', '7', 0, -2000000, '2023-11-14 01:00:00+00', '2023-11-15 01:00:00+00', NULL);


--
-- Data for Name: limits; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.limits VALUES ('contract', 'token_bucket', 5000000, 86400000000, 5000000, 0, NULL, NULL, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('steps', 'stepped_bucket', 5000000, 3600000000, 20000000, 0, NULL, NULL, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('booked', 'token_bucket', 1000000, 60000000, 1000000, 20000000, NULL, NULL, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('coarse', 'sliding_window', 10000000, 3600000000, 10000000, 0, NULL, 4, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('sharded', 'token_bucket', 100000000, 3600000000, 100000000, 0, NULL, NULL, 4, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('leased', 'concurrency', 3000000, 3600000000, 3000000, 0, NULL, NULL, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('window', 'fixed_window', 10000000, 86400000000, 10000000, 0, 0, NULL, 1, 'durable', DEFAULT);
INSERT INTO tollgate.limits VALUES ('money', 'wallet', 0, 0, 0, 0, NULL, NULL, 1, 'durable', DEFAULT);


--
-- Data for Name: overrides; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.overrides VALUES ('contract', 'acme', 'contract', 'numbers', 'token_bucket', 5000000, 86400000000, 50000000, 0, '2026-11-29 10:56:54.586172+00', 'infinity', 'of 2026', 'on call', '2026-11-29 10:56:54.586172+00');
INSERT INTO tollgate.overrides VALUES ('contract', 'mallory', 'ban', 'deny', NULL, NULL, NULL, NULL, NULL, '2026-11-29 10:56:54.598483+00', '2055-07-24 00:00:00+00', 'spam', 'on call', '2026-11-29 10:56:54.598483+00');


--
-- Data for Name: schema_history; Type: TABLE DATA; Schema: tollgate; Owner: -
--

INSERT INTO tollgate.schema_history VALUES (1, 'create_ephemeral', '2026-11-29T10:56:54.221244734Z', '5116352157224578461');
INSERT INTO tollgate.schema_history VALUES (2, 'create_durable', '2026-11-29T10:56:54.26461782Z', '13895379425595852598');
INSERT INTO tollgate.schema_history VALUES (3, 'create_balances', '2026-11-29T10:56:54.292511382Z', '4079054656632409427');
INSERT INTO tollgate.schema_history VALUES (4, 'create_calls', '2026-11-29T10:56:54.296292388Z', '593821626596391510');
INSERT INTO tollgate.schema_history VALUES (5, 'create_functions', '2026-11-29T10:56:54.357233194Z', '8353416719296872527');
INSERT INTO tollgate.schema_history VALUES (6, 'create_overrides', '2026-11-29T10:56:54.476366558Z', '9758149563728308411');


--
-- Name: receipts receipts_pkey; Type: CONSTRAINT; Schema: service; Owner: -
--

ALTER TABLE ONLY service.receipts
    ADD CONSTRAINT receipts_pkey PRIMARY KEY (limit_name);


--
-- Name: calls calls_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.calls
    ADD CONSTRAINT calls_pkey PRIMARY KEY (part, name, key, id);


--
-- Name: durable durable_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.durable
    ADD CONSTRAINT durable_pkey PRIMARY KEY (part, name, key, shard);


--
-- Name: ephemeral ephemeral_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.ephemeral
    ADD CONSTRAINT ephemeral_pkey PRIMARY KEY (part, name, key, shard);


--
-- Name: limits limits_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (name);


--
-- Name: overrides overrides_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.overrides
    ADD CONSTRAINT overrides_pkey PRIMARY KEY (name, key, label);


--
-- Name: schema_history schema_history_pkey; Type: CONSTRAINT; Schema: tollgate; Owner: -
--

ALTER TABLE ONLY tollgate.schema_history
    ADD CONSTRAINT schema_history_pkey PRIMARY KEY (version);


--
-- Name: calls_lapse; Type: INDEX; Schema: tollgate; Owner: -
--

CREATE INDEX calls_lapse ON tollgate.calls USING btree (part, lapses_at) WHERE (lapses_at IS NOT NULL);


--
-- PostgreSQL database dump complete
--


