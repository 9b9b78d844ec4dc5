-- Functions for operators: they define limits, give and take tokens, and settle.

-- credit, debit, reset, settle and cancel, which succeed whatever the row holds. The answer is the balance; for settle
-- and cancel it is the amount that stays charged.
create function tollgate._change(verb text, limit_name text, key text, amount numeric, actual numeric,
                                 decided_at timestamptz, ready_at timestamptz, once text, kept interval,
                                 as_of timestamptz, named tstzrange default null) returns numeric
language plpgsql as $$
#variable_conflict use_variable
declare
    q record; v tollgate._verdict; l tollgate._row; micros int8 := tollgate._asked(limit_name, key, amount);
    clock timestamptz; now int8; back numeric := 0; print int8; is_repeat bool := false; is_late bool;
    bounds int8[];
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
    elsif verb = 'reset' and q.kind = 'meter' then
        raise exception using errcode = 'TG002',
            message = format('limit %L is a meter, which is not reset, because that would erase a bill', limit_name),
            hint = 'Correct the bill with tollgate.credit().';
    end if;
    if verb = 'debit' and (q.flow = 'b' or named is not null) then
        bounds := tollgate._period(limit_name, q.flow, named);
        q.phase := bounds[1];
        q.period := bounds[2];
    elsif q.flow = 'b' then
        q.flow := 'p';
        -- Of use beyond a charge whose row is gone nobody knows the period: a month stands in for it.
        q.period := 2678400000000;
    end if;
    -- A verb that takes tokens, or changes a wallet, inserts a missing row.
    l := tollgate._lock(q.storage, limit_name, key, case when verb <> 'reset' and (q.flow = 'w' or verb = 'debit'
                                                              or actual > amount) then q.flow end, as_of);
    clock := coalesce(as_of, clock_timestamp());
    now := tollgate._micros(clock);
    perform tollgate._admit(limit_name, q.kind, q.shards, q.flow, 0, 0, l.value, l.ts, l.full_at, now, l.list);
    -- The row first, then its call: the one lock order.
    if once is not null then
        print := tollgate._fingerprint(verb, limit_name, key, micros);
        clock := greatest(clock, tollgate._instant(l.ts));
        insert into tollgate.calls (part, name, key, id, asked, charges, answer, charged_at, kept_until)
        values (0, limit_name, key, once, print, '[]', '{}', clock,
                -- In microseconds: in some zones a day that is added to an instant has another length.
                least(tollgate._instant(tollgate._micros(clock) + (extract(epoch from kept) * 1000000)::int8),
                      timestamptz '262142-12-31 23:59:59.999999+00')) on conflict do nothing;
        is_repeat := not found;
        if is_repeat and not exists (select from tollgate.calls c where c.part = 0::int2 and c.name = limit_name
                                        and c.key = _change.key and c.id = once and c.asked = print) then
            raise exception using errcode = 'TG008', message = format(
                'limit %L: the id was granted another call before (use an id for each)', limit_name);
        end if;
    end if;
    if verb in ('settle', 'cancel') then
        is_late := verb = 'cancel' and greatest(now, l.ts) > tollgate._micros(greatest(ready_at, decided_at));
        back := case when is_late then 0 else (amount - actual) * 1000000 end;
        -- Under an unlimited override that was set by then, it was charged nothing. One that was set later charged
        -- before, whenever it starts. While the clock is behind its setting, nobody knows which came first.
        if q.kind <> 'meter'
           and exists (select from (values (key), ('')) k (key)
                     join tollgate.overrides o on o.name = limit_name and o.key = k.key
                    where o.effect = 'unlimited' and (o.set_at <= decided_at or o.set_at > clock)
                      and tollgate._is_live(o.starts_at, o.ends_at, o.set_at, decided_at)) then
            back := 0;
            is_late := false;
        end if;
        v := tollgate._settle(q.flow, q.rate, q.period, l.value, l.ts, l.list, l.full_at, now,
                              tollgate._micros(decided_at), back);
        if is_late then
            raise exception using errcode = 'TG010', message = format(
                'limit %L: the tokens are ready, and too late to cancel (give them back: settle at 0)', limit_name);
        end if;
        v.remaining := micros - case when v.new_ts is null then 0 else back end;
    else
        v := tollgate._decide(case when is_repeat then 'look' else verb end, q.flow, q.rate, q.period, q.most, q.phase,
                              l.value, l.ts, l.full_at, now, micros, null, 0, l.list, q.paused);
    end if;
    if v.new_ts is not null then
        perform tollgate._write(q.storage, limit_name, key, null, null, null, null, v.new_value, v.new_ts, v.full_at,
                                v.mark);
    elsif l.mine then
        perform tollgate._remove(q.storage, limit_name, key);
    end if;
    return v.remaining * 0.000001;
end $$;

create function tollgate.credit(limit_name text, key text, amount numeric, once text default null,
                                kept interval default '31 days') returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('credit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null);
end $$;
create function tollgate.debit(limit_name text, key text, amount numeric, once text default null,
                               kept interval default '31 days', period tstzrange default null) returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('debit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null,
                            period);
end $$;
create function tollgate.reset(limit_name text, key text) returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin
    return tollgate._change('reset', limit_name collate "C", nullif(key, ''), 0, 0, null, null, null, null, null);
end $$;
create function tollgate.settle(limit_name text, key text, charged numeric, actual numeric, decided_at timestamptz)
returns numeric language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('settle', limit_name collate "C", nullif(key, ''), charged, actual, decided_at, decided_at,
                            null, null, null);
end $$;
create function tollgate.cancel(limit_name text, key text, charged numeric, decided_at timestamptz,
                                ready_at timestamptz) returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('cancel', limit_name collate "C", nullif(key, ''), charged, 0, decided_at, ready_at,
                            null, null, null);
end $$;

create function tollgate.define(limit_name text, kind text, rate numeric default 0, period interval default '0',
                                capacity numeric default null, max_reserved numeric default 0,
                                start interval default null, storage text default 'durable', shards int4 default 1,
                                resolution int4 default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
#variable_conflict use_variable
begin
    capacity := coalesce(capacity, rate);
    if (tollgate._tokens(rate) + tollgate._tokens(capacity)::numeric + tollgate._tokens(max_reserved)) is null
       or capacity = 0 and max_reserved = 0 and kind not in ('meter', 'wallet')
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
