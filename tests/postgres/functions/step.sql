-- One step on a row, as rule.rs tells it: the answer, and what is written.
create function public.step(verb text, flow "char", limit_name text, key text, rate int8, period int8, most int8, start int8,
                            value int8, ts int8, list int8[], full_at int8, now int8, amount int8, actual int8, debt int8,
                            until int8, ready_at int8) returns text
language plpgsql security definer set search_path = pg_catalog as $$
declare
    v tollgate._verdict; told text; mark text := case flow when 'w' then '{3}' else '' end;
    phase int8 := case when flow = 'g' then coalesce(start, tollgate._spread(limit_name, key, period)) else 0 end;
    is_late boolean := verb = 'cancel' and greatest(now, ts) > ready_at;
begin
    if not tollgate._fits(flow, value, list) and not is_late then
        return 'TG006';
    end if;
    if verb in ('consume', 'reserve', 'check') then
        v := tollgate._decide(flow, rate, period, most, phase, value, ts, now, amount, debt);
        told := case when v.granted then 'granted ' else 'denied ' end || v.remaining || ' ' || v.at || ' '
                || case when v.granted and v.instant <= v.at then now else v.instant end;
        if verb = 'check' then
            v.new_ts := null;
        end if;
    elsif verb in ('settle', 'cancel') then
        v := tollgate._settle(flow, rate, period, value, ts, flow <> 'w' and list is not null, full_at, now, until,
                              case when is_late then 0 else amount::numeric - actual end);
        told := 'settled ' || case when v.new_ts is null then amount else actual end;
    else
        v := tollgate._alter(verb, flow, rate, period, most, phase, value, ts, now, amount);
        told := 'done ' || v.remaining;
    end if;
    if v.new_ts is not null and (value is null or (v.new_value, v.new_ts) <> (value, ts) or coalesce(list::text, '') <> mark) then
        told := told || ' -> ' || v.new_value || ' ' || v.new_ts || mark || ' ' || v.full_at;
    end if;
    return told;
exception when sqlstate 'TG003' or sqlstate 'TG007' then
    return sqlstate;
end $$;
