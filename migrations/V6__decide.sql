-- The rule of the SQL functions, which are for callers without the library: what a row says at an instant, and what a
-- call makes of it. No function here reads a table. Amounts are micro-tokens and instants microseconds since 1970, in
-- int8. Products are numeric, because they can pass 2^63.

-- PostgreSQL inlines helpers of one expression, and parses others at each call. So no expensive expression is passed
-- for a parameter that occurs twice, and a helper that calls something stable is stable.

-- An amount of tokens in micro-tokens; null if it is no such amount.
create function tollgate._tokens(amount numeric) returns int8 language sql immutable as $$
    select case when amount between 0 and 9223372036854.775807 and trunc(amount, 6) = amount
                then (amount * 1000000)::int8 end $$;
-- The same for a request; null also if its name or key is not valid. The empty key is everybody's row.
create function tollgate._asked(limit_name text, key text, amount numeric) returns int8 language sql immutable as
$$ select case when limit_name <> '' and octet_length(key) <= 512 then tollgate._tokens(amount) end $$;

create function tollgate._micros(at timestamptz) returns int8 language sql stable as
$$ select (extract(epoch from at) * 1000000)::int8 $$;
create function tollgate._instant(micros int8) returns timestamptz language sql stable as $$
    select timestamptz 'epoch' + (micros / 3600000000)::float8 * interval '1 hour'
                               + (micros % 3600000000)::float8 * interval '1 microsecond' $$;
-- The last instant that a row can hold, if this one is later. Not for null, which least() ignores.
create function tollgate._clamp(at numeric) returns int8 language sql immutable as
$$ select least(8210266876799999999, at)::int8 $$;

-- The number of the last step of a grid at or before an instant; `/` alone would round towards zero.
create function tollgate._step(at int8, phase int8, period int8) returns int8 language sql immutable as
$$ select (at - phase) / period - case when (at - phase) % period < 0 then 1 else 0 end $$;

-- Months of UTC are counted from January 1970. Each begins at the same offset from midnight at the start of its 1st;
-- one that has no such day begins on its last. This goes by dates: months of a timestamptz are those of the session's
-- zone.
create function tollgate._month_at(number numeric, phase int8) returns int8 language plpgsql immutable as $$
declare
    -- Beyond the last instant, and the month of the first.
    n int4 := greatest(-80187, least(number, 3200000));
    y int4 := 1970 + n / 12 - case when n % 12 < 0 then 1 else 0 end;
    m int4 := n - (y - 1970) * 12 + 1;
    days int4 := case m when 2 then 28 + (y % 4 = 0 and y % 100 <> 0 or y % 400 = 0)::int4
                        else 30 + (m + m / 8) % 2 end;
    -- The calendar has no year 0.
    first int4 := case when n > -80186 then make_date(y - case when y < 1 then 1 else 0 end, m, 1) - date '1970-01-01'
                       else -2440611 end;
begin
    return case when n < -80186 then -210866803200000000 else greatest(-210866803200000000, least(8210266876799999999,
        (first + least(phase / 86400000000, days - 1)) * 86400000000 + phase % 86400000000)) end;
end $$;
-- The number of the month in which an instant lies.
create function tollgate._month(at int8, phase int8) returns int8 language plpgsql immutable as $$
declare
    day date := date '1970-01-01' + (at / 86400000000 - case when at % 86400000000 < 0 then 1 else 0 end)::int4;
    y int8 := extract(year from day);
    n int8 := (y + case when y < 0 then 1 else 0 end - 1970) * 12 + extract(month from day) - 1;
begin
    return n - case when at < tollgate._month_at(n, phase) then 1 else 0 end;
end $$;

-- The end of the period in which a row stands, for a caller that has named no later one.
create function tollgate._ended(period int8, phase int8, ts int8, list int8[]) returns int8 language sql immutable as $$
    select case when list[1] = 4 and ts > phase then list[2]
                else least(8210266876799999999, phase + (tollgate._step(ts, phase, period) + 1) * period) end $$;
-- How often tokens come back from one instant to another, with months or with periods that are named. A start brings an
-- earlier row those of the periods since, to the nearest and at least one.
create function tollgate._turns(flow "char", period int8, phase int8, ts int8, list int8[], at int8) returns numeric
language plpgsql immutable as $$
declare
    ended int8;
begin
    if flow = 'm' then
        return tollgate._month(at, phase) - tollgate._month(ts, phase);
    elsif at < phase or at = ts then
        return 0;
    elsif ts < phase then
        return greatest(1, (phase - ts + period / 2) / period) + (at - phase) / period;
    end if;
    ended := tollgate._ended(period, phase, ts, list);
    return case when at < ended or ended = 8210266876799999999 then 0 else (at - ended) / period + 1 end;
end $$;
-- When they come back for the nth time.
create function tollgate._turn(flow "char", period int8, phase int8, ts int8, list int8[], n numeric) returns int8
language plpgsql immutable as $$
begin
    return case when flow = 'm' then tollgate._month_at(tollgate._month(ts, phase) + n, phase)
                when ts < phase then tollgate._clamp(
                    phase + greatest(0, n - greatest(1, (phase - ts + period / 2) / period)) * period)
                else tollgate._clamp(tollgate._ended(period, phase, ts, list) + (n - 1) * period) end;
end $$;
-- The instant that a row takes after its period has ended: the end, as long as no period that is named later can have
-- begun since.
create function tollgate._after(period int8, ended int8, at int8) returns int8 language sql immutable as
$$ select case when at - ended < period / 9 * 8 then ended else at end $$;
create function tollgate._stood(flow "char", period int8, phase int8, ts int8, list int8[], at int8) returns int8
language plpgsql immutable as $$
declare
    named int8 := tollgate._clamp(phase::numeric + period);
begin
    return case when ts is not null and tollgate._turns(flow, period, phase, ts, list, at) = 0 then ts
                when flow = 'm' then tollgate._month_at(tollgate._month(at, phase), phase)
                when ts >= phase then tollgate._after(period, greatest(tollgate._ended(period, phase, ts, list),
                                                                       case when named <= at then named end), at)
                when at < phase then at
                when at < named then phase
                else tollgate._after(period, named, at) end;
end $$;
-- The mark of a row that is written. `list` is the one that it keeps, if it stands where it stood.
create function tollgate._marked(flow "char", period int8, phase int8, ts int8, list int8[]) returns int8[]
language plpgsql immutable as $$
declare
    named int8;
begin
    if flow = 'w' then
        return array[3];
    elsif flow = 'p' then
        return case when list[1] > 3 then list end;
    elsif flow = 'm' then
        return array[5, tollgate._month_at(tollgate._month(ts, phase) + 1, phase), phase];
    elsif flow <> 'b' then
        return null;
    end if;
    named := tollgate._clamp(phase::numeric + period);
    return case when ts < phase then array[4, phase, period]
                when ts = phase then array[4, named, period]
                when list[1] = 4 then list
                when ts < named then array[4, named, period]
                else array[4, tollgate._clamp(ts::numeric + period + (period + 7) / 8), period] end;
end $$;
-- When a marked row is full, if each period brings so much. A period that nobody named may be an eighth longer.
create function tollgate._full_by_mark(mark int8[], value numeric, ts int8, rate int8) returns int8
language plpgsql immutable as $$
declare
    n numeric := div(greatest(-value, 0) + rate - 1, rate);
begin
    return case when n = 0 then ts
                when n = 1 then mark[2]
                when mark[1] = 5 then tollgate._month_at(tollgate._month(mark[2], mark[3]) + n - 1, mark[3])
                else tollgate._clamp(mark[2] + (n - 1) * (mark[3] + (mark[3] + 7) / 8)) end;
end $$;

-- The instant of a row that is missing, or as good as missing. A stepped bucket keeps its grid while its row is there.
create function tollgate._fresh(flow "char", period int8, phase int8, ts int8, at int8) returns int8
language sql immutable as $$
    select case flow when 'g' then greatest(-210866803200000000, phase + tollgate._step(at, phase, period) * period)
                     when 'f' then coalesce(ts + (at - ts) / period * period, at)
                     when 'm' then tollgate._stood(flow, period, phase, null, null, at)
                     when 'b' then tollgate._stood(flow, period, phase, null, null, at)
                     else at end $$;
-- The instant that a row takes when it is written at a later one.
create function tollgate._written_at(flow "char", period int8, phase int8, ts int8, at int8, list int8[]) returns int8
language sql immutable as $$
    select case when flow = 'g' and tollgate._step(at, phase, period) <= tollgate._step(ts, phase, period) then ts
                when flow = 'p' then ts
                when flow in ('m', 'b') then tollgate._stood(flow, period, phase, ts, list, at)
                else tollgate._fresh(flow, period, phase, ts, at) end $$;
-- The tokens that come back from one instant to another.
create function tollgate._gained(flow "char", rate int8, period int8, phase int8, ts int8, at int8,
                                 list int8[] default null) returns numeric language sql immutable as $$
    select case flow when 'c' then div(rate::numeric * (at - ts), period)
                     when 'f' then rate::numeric * ((at - ts) / period)
                     when 'g' then rate::numeric
                                   * (tollgate._step(at, phase, period) - tollgate._step(ts, phase, period))
                     when 'm' then rate * tollgate._turns(flow, period, phase, ts, list, at)
                     when 'b' then rate * tollgate._turns(flow, period, phase, ts, list, at)
                     else 0 end $$;
-- The first instant at which a value has grown to a target. From full_at on the row is full, if that is not before ts.
create function tollgate._first_instant(flow "char", rate int8, period int8, phase int8, value numeric, ts int8,
                                  full_at int8, target numeric, list int8[] default null) returns int8
language sql immutable as $$
    select case when value >= target then ts else least(
        case when flow in ('w', 'p') then 8210266876799999999
             when flow in ('m', 'b')
             then tollgate._turn(flow, period, phase, ts, list, div(target - value + (rate - 1), rate))
             else tollgate._clamp(
            case when flow = 'g' then phase + tollgate._step(ts, phase, period) * period else ts end
            + case when flow = 'c' then div((target - value) * period + (rate - 1), rate)
                   else div(target - value + (rate - 1), rate) * period end) end,
        case when full_at >= ts and target <= 0 then full_at end) end $$;
-- Whether a row is as good as missing, under any definition. A row that is full only at the end of time never is.
create function tollgate._is_over(ts int8, full_at int8, now int8) returns bool language sql immutable as
$$ select coalesce(full_at >= ts and full_at <= greatest(now, ts) and full_at < 8210266876799999999, false) $$;
-- Whether a definition may read a row: capacity is no money, and money no capacity. A list of another kind does not
-- count, and goes when the row is written.
create function tollgate._may_read(flow "char", value int8, ts int8, full_at int8, now int8, list int8[]) returns bool
language sql immutable as $$
    select value is null or coalesce(list[1] between 1 and 3 or list[1] between 4 and 5 and cardinality(list) = 3,
                                     list is null)
           and (tollgate._is_over(ts, full_at, now) or coalesce(list[1] = 3, false) = (flow = 'w')) $$;

-- `instant` is when a grant is ready, or a refusal over. Where new_ts is null, there is nothing to write.
create type tollgate._verdict as (granted bool, amount int8, remaining int8, at int8, instant int8, new_value int8,
                                  new_ts int8, full_at int8, mark int8[]);

-- Decides a call on a row; the value of a missing one is null. Values count from full: at 0 a bucket has its capacity,
-- and a wallet nothing. If `part` is not null, that much is enough, and the call takes up to its cost: whole tokens, if
-- both are whole. A negative `max_debt` is the amount that must remain. `verb` is null, or credit, debit or reset,
-- which succeed whatever the row holds; any other only looks. Tokens that were used under a faster definition come back
-- when that definition would have given them back. A row that is marked with a period of another definition stands
-- still until it is full: flow p. So does that of a billing limit for a caller that names no period. The span `paused`
-- brings a token bucket nothing, as if it had been written so much later.
create function tollgate._decide(verb text, flow "char", rate int8, period int8, most int8, phase int8, value int8,
                                 ts int8, full_at int8, now int8, amount int8, part int8, max_debt int8, list int8[],
                                 paused int8[] default null)
returns tollgate._verdict language plpgsql immutable as $$
declare
    v tollgate._verdict; top int8 := case flow when 'w' then 0 else most end; debt numeric; level numeric;
    taken numeric := amount; still int8;
begin
    v.at := greatest(now, ts);
    if paused is not null and flow = 'c' and list is null and not tollgate._is_over(ts, full_at, paused[1]) then
        still := greatest(least(paused[2], v.at) - greatest(paused[1], ts), 0);
        ts := ts + still;
        full_at := tollgate._clamp(full_at::numeric + still);
    end if;
    if value is null or tollgate._is_over(ts, full_at, now) then
        -- A reset leaves a missing row missing.
        verb := case when verb = 'reset' and value is null then 'look' else verb end;
        ts := tollgate._fresh(flow, period, phase, ts, v.at);
        value := 0;
        full_at := null;
        list := null;
    elsif list[1] between 4 and 5 and not (flow = 'b' and list[1] = 4 or flow = 'm' and list[3] = phase and list[1] = 5)
    then
        flow := 'p';
    end if;
    level := least(value + tollgate._gained(flow, rate, period, phase, ts, v.at, list),
                   case when flow <> 'w' then 0 end);
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
            return row(false, 0::int8, (top + level)::int8, v.at, greatest(v.at, tollgate._first_instant(flow, rate,
                       period, phase, value, ts, full_at, taken - debt - top, list)), null::int8, null::int8,
                       null::int8, null::int8[]);
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
            return row(true, 0::int8, top, v.at, v.at, 0::int8, ts, ts,
                       tollgate._marked(flow, period, phase, ts, case flow when 'p' then list end));
        end if;
    end if;
    v := row(true, taken, top + level - taken, v.at, v.at, level - taken,
             case when taken <> 0 then tollgate._written_at(flow, period, phase, ts, v.at, list) end, null, null);
    if v.new_ts is not null then
        v.mark := tollgate._marked(flow, period, phase, v.new_ts, case when v.new_ts = ts then list end);
        v.full_at := case when flow = 'w' then case when v.new_value = 0 then v.new_ts else 8210266876799999999 end
                          when v.mark is not null
                          then tollgate._full_by_mark(v.mark, v.new_value, v.new_ts,
                                                      case flow when 'p' then greatest(top, rate) else rate end)
                          else tollgate._first_instant(flow, rate, period, phase, v.new_value, v.new_ts, null, 0) end;
        if flow = 'p' and v.mark is not null then
            -- This definition does not know what each period brings, so it forgets nothing sooner than the row says.
            v.full_at := case when v.new_value < 0 then greatest(v.full_at, full_at) else v.full_at end;
        elsif full_at >= ts and full_at < v.full_at and flow <> 'w' then
            if value + tollgate._gained(flow, rate, period, phase, ts, full_at, list) < 0 then
                taken := greatest(taken, 0) * case flow when 'c' then period else 1 end + (rate - 1);
                v.full_at := greatest(v.new_ts, least(v.full_at, tollgate._clamp(
                    greatest(full_at, v.new_ts)
                    + div(taken, rate) * case flow when 'c' then 1 when 'b' then period + (period + 7) / 8
                                                   else period end)));
            end if;
        end if;
    end if;
    if v.remaining < 0 and flow <> 'w' then
        v.instant := greatest(v.at, tollgate._first_instant(flow, rate, period, phase,
            case when v.new_ts is null then value else v.new_value end, coalesce(v.new_ts, ts),
            coalesce(v.full_at, full_at), -top, case when v.new_ts is null then list else v.mark end));
    end if;
    return v;
end $$;

-- Gives back an amount of a charge, or takes more where the amount is negative, on the row as it was read: the next
-- reader refills and cuts it. A window and a marked row give back only in the step of the charge, and a row with
-- another kind's list gives back nothing.
create function tollgate._settle(flow "char", rate int8, period int8, value int8, ts int8, list int8[], full_at int8,
                                 now int8, until int8, back numeric) returns tollgate._verdict
language plpgsql immutable as $$
declare
    v tollgate._verdict; is_missing bool := value is null or tollgate._is_over(ts, full_at, now);
    total numeric := case when is_missing then 0 else value end + back;
    is_marked bool := coalesce(flow <> 'w' and list[1] between 4 and 5 and not is_missing, false);
begin
    if back = 0 or flow <> 'w' and back > 0 and (is_missing or list is not null and not is_marked
                                                 or (is_marked or flow in ('g', 'm', 'b', 'p')) and ts > until) then
        return v;
    elsif total < -9223372036854775808 then
        raise exception using errcode = 'TG003', message = 'a debt this deep does not fit';
    elsif total > 9223372036854775807 then
        raise exception using errcode = 'TG007', message = 'a balance this large does not fit';
    end if;
    v.new_value := total;
    v.new_ts := case when is_missing then greatest(now, ts) else ts end;
    full_at := case when is_missing then v.new_ts else full_at end;
    v.mark := case when flow = 'w' then array[3]::int8[] when is_marked then list end;
    v.full_at := case when flow = 'w' then case total when 0 then v.new_ts else 8210266876799999999 end
                      when back > 0 then full_at
                      when is_marked then greatest(full_at, tollgate._full_by_mark(list, total, v.new_ts, rate))
                      when full_at < v.new_ts then full_at
                      else least(tollgate._clamp(full_at + div(rate - 1 - back, rate) * period), greatest(full_at,
                          tollgate._clamp(v.new_ts + div(rate - 1 - least(total, 0), rate) * period))) end;
    return v;
end $$;

-- The hash of phases and fingerprints: 64-bit FNV-1a in two halves of 32 bits, and the finalizer of MurmurHash3.
create function tollgate._hash(bytes bytea) returns numeric language plpgsql immutable as $$
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
-- The phase of a key's windows.
create function tollgate._phase(limit_name text, key text, period int8) returns int8 language sql immutable as $$
    select div(tollgate._hash(convert_to(limit_name, 'UTF8') || decode('ff', 'hex') || convert_to(key, 'UTF8'))
               * period, 18446744073709551616)::int8 $$;
-- The fingerprint of a call with an id, as the library makes it: an id belongs to one call, whether the library or SQL
-- makes it.
create function tollgate._fingerprint(verb text, limit_name text, key text, micros int8) returns int8
language plpgsql as $$
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
