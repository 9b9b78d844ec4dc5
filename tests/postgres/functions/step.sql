-- A step of a row that is there, by what callers call.
create function public.by_table(verb text, flow "char", limit_name text, key text, rate int8, period int8, most int8,
                                start int8, value int8, ts int8, list int8[], full_at int8, now int8, amount int8,
                                part int8, debt int8, named tstzrange, paused int8[]) returns text
language plpgsql security definer set search_path = pg_catalog as $$
#variable_conflict use_variable
declare
    d tollgate.decision; r tollgate.durable; told text; kind text := case flow
        when 'c' then 'token_bucket' when 'f' then 'stepped_bucket' when 'g' then 'fixed_window'
        when 'm' then 'monthly' when 'b' then 'billing' else 'wallet' end;
begin
    delete from tollgate.durable;
    delete from tollgate.limits;
    delete from tollgate.overrides;
    insert into tollgate.overrides (name, key, label, effect, starts_at, ends_at, reason, set_by, set_at)
    select limit_name, key, 'pause', 'deny', tollgate._instant(paused[1]), tollgate._instant(paused[2]), 'x', 'x',
           tollgate._instant(paused[1]) where paused is not null;
    insert into tollgate.limits (name, kind, rate, period, capacity, max_reserved, start)
    values (limit_name, kind, rate, case when flow in ('m', 'b') then 0 else period end,
            case flow when 'w' then 0 else most end, greatest(debt, 0), case when flow <> 'b' then start end);
    if value is not null then
        insert into tollgate.durable
        values (0, limit_name, key, 0, value, tollgate._instant(ts), tollgate._instant(full_at), list);
    end if;
    if part is null and debt >= 0 and now % 8 = 0 then
        d := tollgate._ask_all(array[row(limit_name, key, amount * 0.000001, key = '', named)::tollgate.request],
                               verb = 'reserve', verb = 'check', tollgate._instant(now));
        -- The amounts of several requests are their own.
        d.amount := case when d.granted then amount * 0.000001 else 0 end;
    else
        d := tollgate._ask(limit_name, key, amount * 0.000001, verb = 'reserve', verb = 'check',
                           tollgate._instant(now), part * 0.000001, case when debt < 0 then -debt * 0.000001 end,
                           named);
    end if;
    told := case when d.granted then 'granted ' else 'denied ' end || (d.amount * 1000000)::int8 || ' '
            || (d.remaining * 1000000)::int8 || ' ' || tollgate._micros(d.decided_at) || ' '
            || case when d.granted then tollgate._micros(d.ready_at)
                    else coalesce(tollgate._micros(d.retry_at), 8210266876799999999) end;
    select * into r from tollgate.durable;
    if (r.value, tollgate._micros(r.ts), tollgate._micros(r.full_at), r.list)
       is distinct from (value, ts, full_at, list) then
        told := told || ' -> ' || r.value || ' ' || tollgate._micros(r.ts) || coalesce(r.list::text, '') || ' '
                || tollgate._micros(r.full_at);
    end if;
    return told;
end $$;

-- One step on a row, as rule.rs tells it: the answer, and what is written.
create function public.step(verb text, flow "char", limit_name text, key text, rate int8, period int8, most int8,
                            start int8, value int8, ts int8, list int8[], full_at int8, now int8, amount int8,
                            part int8, actual int8, debt int8, until int8, ready_at int8, paused int8[]) returns text
language plpgsql security definer set search_path = pg_catalog as $$
declare
    v tollgate._verdict; told text; named tstzrange;
    phase int8 := case when flow = 'g' then coalesce(start, tollgate._phase(limit_name, key, period))
                       when flow in ('m', 'b') then coalesce(start, 0) else 0 end;
    is_late boolean := verb = 'cancel' and greatest(now, ts) > ready_at; by_table text;
begin
    -- A billing limit is asked by the period from `start` on, where `start` is given.
    if flow = 'b' and start is null then
        flow := 'p';
    elsif flow = 'b' then
        named := tstzrange(tollgate._instant(start), tollgate._instant(start + period));
    end if;
    if not tollgate._may_read(flow, value, ts, full_at, now, list) then
        return 'TG006';
    end if;
    if verb in ('consume', 'reserve', 'check') then
        v := tollgate._decide(null, flow, rate, period, most, phase, value, ts, full_at, now, amount, part, debt,
                              list, paused);
        told := case when v.granted then 'granted ' else 'denied ' end || v.amount || ' ' || v.remaining || ' ' || v.at
                || ' ' || case when v.granted and v.instant <= v.at then now else v.instant end;
        if verb = 'check' then
            v.new_ts := null;
        end if;
        -- The tables know of a pause that is over, for as long again.
        if now % 4 = 0 and (paused is null or now >= paused[2] and now - paused[2] < paused[2] - paused[1]) then
            by_table := public.by_table(verb, flow, limit_name, key, rate, period, most, start, value, ts, list,
                                        full_at, now, amount, part, debt, named, paused);
        end if;
    elsif verb in ('settle', 'cancel') then
        v := tollgate._settle(flow, rate,
                              case when flow in ('b', 'p') then period + (period + 7) / 8 else period end, value, ts,
                              list, full_at, now, until,
                              case when is_late then 0 else amount::numeric - actual end);
        told := 'settled ' || case when v.new_ts is null then amount else actual end;
    else
        v := tollgate._decide(verb, flow, rate, period, most, phase, value, ts, full_at, now, amount, null, 0,
                              list, paused);
        told := 'done ' || v.remaining;
    end if;
    if v.new_ts is not null
       and (value is null
            or (v.new_value, v.new_ts, v.full_at, v.mark) is distinct from (value, ts, full_at, list)) then
        told := told || ' -> ' || v.new_value || ' ' || v.new_ts || coalesce(v.mark::text, '') || ' ' || v.full_at;
    end if;
    return told || case when by_table <> told then ', but at the tables ' || by_table else '' end;
exception when sqlstate 'TG003' or sqlstate 'TG007' then
    return sqlstate;
end $$;
