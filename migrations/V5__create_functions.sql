-- The limiter for callers without the library: functions over the same rows, by definitions in a table. Amounts are
-- micro-tokens and instants microseconds since 1970, in int8. Products are numeric, because they can pass 2^63.

-- Bodies are parsed by the search path, in which strangers may have operators.
do $$ begin
    perform pg_catalog.set_config('tollgate.path', pg_catalog.current_setting('search_path'), true);
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
end $$;

create table tollgate.limits (
    name         text collate "C" primary key,
    kind         text not null,
    rate         int8 not null,
    period       int8 not null,
    capacity     int8 not null,
    max_reserved int8 not null default 0,
    start        int8,
    resolution   int2,
    shards       int2 not null default 1,
    storage      text not null default 'durable',
    -- How tokens come back: c all the time, f in steps from the first use, g on a grid, w not at all. Only the Rust
    -- library decides a limit with a -.
    flow         "char" not null generated always as (
        case when shards > 1 then '-' when kind = 'token_bucket' then 'c' when kind = 'stepped_bucket' then 'f'
             when kind = 'fixed_window' then 'g' when kind = 'wallet' then 'w' else '-' end::"char") stored,

    constraint a_name_has_1_to_255_bytes check (octet_length(name) between 1 and 255),
    constraint a_kind_is_known check (kind in ('token_bucket', 'fixed_window', 'stepped_bucket', 'sliding_window',
                                               'concurrency', 'wallet')),
    constraint a_storage_is_ephemeral_or_durable check (storage in ('ephemeral', 'durable')),
    constraint numbers_are_in_range check (capacity >= 0 and max_reserved >= 0 and shards between 1 and 64
                                           and (kind <> 'concurrency' or rate <= 1000000000)),
    constraint a_rate_and_a_period_are_positive check (
        kind = 'wallet' or rate >= shards and period between 1 and 31536000000000000),
    constraint a_wallet_has_no_size_and_is_durable check (
        kind <> 'wallet' or rate = 0 and period = 0 and capacity = 0 and shards = 1 and storage = 'durable'),
    constraint a_start_is_of_a_fixed_window check (
        start is null or kind = 'fixed_window' and start between 0 and period - 1),
    constraint a_resolution_is_of_a_sliding_window check (
        resolution is null or kind = 'sliding_window' and resolution between 1 and 63),
    constraint what_counts_has_no_capacity_and_no_reservations check (
        kind not in ('sliding_window', 'concurrency') or capacity = rate and max_reserved = 0),
    constraint shards_are_of_token_buckets_and_fixed_windows check (
        shards = 1 or kind in ('token_bucket', 'fixed_window')),
    constraint reservations_are_durable check (max_reserved = 0 or storage = 'durable'),
    constraint a_row_can_hold_what_is_used check (
        max_reserved = 9223372036854775807 or capacity + max_reserved::numeric <= 9223372036854775807)
);
comment on table tollgate.limits is
    'definitions for callers of the functions, in micro-tokens and microseconds; Rust code may have its own';

create table tollgate.overrides (
    name         text collate "C" not null,
    key          text collate "C" not null,
    label        text collate "C" not null default '',
    effect       text not null,
    kind         text,
    rate         int8,
    period       int8,
    capacity     int8,
    max_reserved int8,
    starts_at    timestamptz not null,
    ends_at      timestamptz not null,
    reason       text not null,
    set_by       text not null,
    set_at       timestamptz not null,

    constraint overrides_pkey primary key (name, key, label),
    constraint a_name_has_1_to_255_bytes check (octet_length(name) between 1 and 255),
    constraint a_key_has_at_most_512_bytes check (octet_length(key) <= 512),
    constraint a_label_has_at_most_255_bytes check (octet_length(label) <= 255),
    constraint an_effect_is_known check (effect in ('numbers', 'slowed', 'deny', 'unlimited')),
    constraint numbers_have_a_kind_a_rate_a_period_and_a_capacity check (
        num_nulls(kind, rate, period, capacity, max_reserved)
        = case effect when 'numbers' then 0 when 'slowed' then 4 else 5 end),
    constraint slowed_has_a_share_of_the_rate_and_an_end check (
        effect <> 'slowed' or coalesce(rate between 1 and 999999, false) and ends_at < 'infinity'),
    constraint numbers_are_those_of_a_limit check (
        effect <> 'numbers' or max_reserved >= 0 and case
            when kind = 'wallet' then rate = 0 and period = 0 and capacity = 0
            when kind in ('token_bucket', 'fixed_window', 'stepped_bucket', 'sliding_window', 'concurrency')
            then rate > 0 and period between 1 and 31536000000000000
                 and capacity >= 0 and capacity + max_reserved::numeric > 0
                 and (max_reserved = 9223372036854775807 or capacity + max_reserved::numeric <= 9223372036854775807)
                 and (kind not in ('sliding_window', 'concurrency') or capacity = rate and max_reserved = 0)
                 and (kind <> 'concurrency' or rate <= 1000000000)
            else false end),
    constraint it_ends_after_it_starts check (
        starts_at > '-infinity' and starts_at < least(ends_at, '262143-01-01 00:00:00+00')
        and (ends_at = 'infinity' or ends_at < '262143-01-01 00:00:00+00')),
    constraint it_was_set_at_an_instant check (set_at > '-infinity' and set_at < '262143-01-01 00:00:00+00'),
    constraint a_reason_has_1_to_500_bytes check (octet_length(reason) between 1 and 500),
    constraint who_has_1_to_255_bytes check (octet_length(set_by) between 1 and 255)
);
comment on table tollgate.overrides is
    'what operators say over definitions: other numbers of the same kind, slowed, deny or unlimited; in their units';
comment on column tollgate.overrides.key is 'whom it applies to; empty for every key, the global row too';
comment on column tollgate.overrides.label is 'tells several of one key apart; each is set and removed by itself';
comment on column tollgate.overrides.starts_at is
    'when it begins; one that had begun at set_at counts until it ends, even if the clock steps back';
comment on column tollgate.overrides.rate is
    'of numbers, the rate; of slowed, its share at starts_at in millionths, which grows to the whole until ends_at';

create type tollgate.decision as (granted bool, amount numeric, remaining numeric, ready_at timestamptz,
                                  retry_at timestamptz, retry_after interval, retry_after_seconds float8,
                                  refused_by text, decided_at timestamptz);
comment on type tollgate.decision is 'an answer; look at granted, or pass it to tollgate.granted()';
create type tollgate.request as (name text, key text, cost numeric, everybody bool);
comment on type tollgate.request is 'one limit of several, by tollgate.request() or tollgate.request_global()';

-- The number of parts over which the tables are distributed. These functions ask part 0 only, so they fail where there
-- are others. `tollgate distribute` replaces this one.
create function tollgate._parts() returns int4 language sql immutable as 'select 0';
-- The most keys that one call may ask. On a busy machine a call of 20 000 kept its rows from others for 7.6 seconds,
-- and one of 2 000 for a second. The owner may replace this one with another number.
create function tollgate._max_keys() returns int4 language sql immutable as 'select 2000';

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
-- The instant of a row that is missing, or as good as missing. A stepped bucket keeps its grid while its row is there.
create function tollgate._fresh(flow "char", period int8, phase int8, ts int8, at int8) returns int8
language sql immutable as $$
    select case flow when 'g' then greatest(-210866803200000000, phase + tollgate._step(at, phase, period) * period)
                     when 'f' then coalesce(ts + (at - ts) / period * period, at)
                     else at end $$;
-- The instant that a row takes when it is written at a later one.
create function tollgate._stands(flow "char", period int8, phase int8, ts int8, at int8) returns int8
language sql immutable as $$
    select case when flow = 'g' and tollgate._step(at, phase, period) <= tollgate._step(ts, phase, period) then ts
                else tollgate._fresh(flow, period, phase, ts, at) end $$;
-- The tokens that come back from one instant to another.
create function tollgate._gained(flow "char", rate int8, period int8, phase int8, ts int8, at int8) returns numeric
language sql immutable as $$
    select case flow when 'c' then div(rate::numeric * (at - ts), period)
                     when 'f' then rate::numeric * ((at - ts) / period)
                     when 'g' then rate::numeric
                                   * (tollgate._step(at, phase, period) - tollgate._step(ts, phase, period))
                     else 0 end $$;
-- The first instant at which a value has grown to a target. From full_at on the row is full, if that is not before ts.
create function tollgate._reached(flow "char", rate int8, period int8, phase int8, value numeric, ts int8,
                                  full_at int8, target numeric) returns int8 language sql immutable as $$
    select case when value >= target then ts else least(
        case when flow = 'w' then 8210266876799999999 else tollgate._clamp(
            case when flow = 'g' then phase + tollgate._step(ts, phase, period) * period else ts end
            + case when flow = 'c' then div((target - value) * period + (rate - 1), rate)
                   else div(target - value + (rate - 1), rate) * period end) end,
        case when full_at >= ts and target <= 0 then full_at end) end $$;
-- Whether a row is as good as missing, under any definition. A row that is full only at the end of time never is.
create function tollgate._is_over(ts int8, full_at int8, now int8) returns bool language sql immutable as
$$ select coalesce(full_at >= ts and full_at <= greatest(now, ts) and full_at < 8210266876799999999, false) $$;
-- Whether a definition may read a row: capacity is no money, and money no capacity. A list of another kind does not
-- count, and goes when the row is written.
create function tollgate._fits(flow "char", value int8, ts int8, full_at int8, now int8, list int8[]) returns bool
language sql immutable as $$
    select value is null or coalesce(list[1] between 1 and 3, list is null)
           and (tollgate._is_over(ts, full_at, now) or coalesce(list[1] = 3, false) = (flow = 'w')) $$;

-- `instant` is when a grant is ready, or a refusal over. Where new_ts is null, there is nothing to write.
create type tollgate._verdict as (granted bool, amount int8, remaining int8, at int8, instant int8, new_value int8,
                                  new_ts int8, full_at int8);

-- Decides a call on a row; the value of a missing one is null. Values count from full: at 0 a bucket has its capacity,
-- and a wallet nothing. If `part` is not null, that much is enough, and the call takes up to its cost: whole tokens, if
-- both are whole. A negative `max_debt` is the amount that must remain. `verb` is null, or credit, debit or reset,
-- which succeed whatever the row holds; any other only looks. Tokens that were used under a faster definition come back
-- when that definition would have given them back.
create function tollgate._decide(verb text, flow "char", rate int8, period int8, most int8, phase int8, value int8,
                                 ts int8, full_at int8, now int8, amount int8, part int8, max_debt int8)
returns tollgate._verdict language plpgsql immutable as $$
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

-- Gives back an amount of a charge, or takes more where the amount is negative, on the row as it was read: the next
-- reader refills and cuts it. A window gives back only in the step of the charge, and a row with another kind's list
-- gives back nothing.
create function tollgate._settle(flow "char", rate int8, period int8, value int8, ts int8, is_listed bool, full_at int8,
                                 now int8, until int8, back numeric) returns tollgate._verdict
language plpgsql immutable as $$
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
create function tollgate._spread(limit_name text, key text, period int8) returns int8 language sql immutable as $$
    select div(tollgate._hash(convert_to(limit_name, 'UTF8') || decode('ff', 'hex') || convert_to(key, 'UTF8'))
               * period, 18446744073709551616)::int8 $$;
-- The fingerprint of a call with an id, as the library makes it: an id belongs to one call, whether the library or SQL
-- makes it.
create function tollgate._print(verb text, limit_name text, key text, micros int8) returns int8 language plpgsql as $$
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

-- A definition, as it is for a key; no row if there is none. `is_overridden`: it may have an override, which
-- _overridden() applies.
create function tollgate._limit(limit_name text, of_key text)
returns table (kind text, shards int2, storage text, flow "char", rate int8, period int8, most int8, max_reserved int8,
               phase int8, is_overridden bool, effect text, ends_at timestamptz) language sql stable as $$
    select d.kind, d.shards, d.storage, d.flow, d.rate, d.period,
           case d.flow when 'w' then 9223372036854775807 else d.capacity end, d.max_reserved,
           case when d.flow = 'g' then coalesce(d.start, tollgate._spread(limit_name, of_key, d.period)) else 0 end,
           exists (select from tollgate.overrides o where o.name = limit_name and o.key = of_key)
           or exists (select from tollgate.overrides o where o.name = limit_name and o.key = ''),
           null::text, null::timestamptz
      from tollgate.limits d where d.name = limit_name $$;

-- Whether an override counts at an instant. One that had begun when it was set has begun, even if the clock steps back.
create function tollgate._is_live(starts_at timestamptz, ends_at timestamptz, set_at timestamptz, at timestamptz)
returns bool language sql immutable as
$$ select (starts_at <= set_at or at >= starts_at) and at < ends_at $$;
-- The share of the rate that a slow-down leaves at an instant, in millionths. It grows each second, until it is the
-- whole at the end.
create function tollgate._share(share int8, starts_at timestamptz, ends_at timestamptz, at timestamptz) returns int8
language sql immutable as $$
    select share + div((1000000 - share)::numeric * greatest(floor(extract(epoch from at - starts_at)), 0),
                       extract(epoch from ends_at - starts_at))::int8 $$;

-- The same under the overrides that are live: the numbers that count, whether an override has set them, and the effect
-- of a deny or unlimited, which answers whatever the row holds. Deny beats unlimited, and unlimited beats numbers,
-- whether they are the key's or every key's. If several deny, the one that ends last counts. Numbers of the key beat
-- those of every key. If there are several such numbers, the ones that were set last count. Numbers of another kind, or
-- reservations of an ephemeral limit, do not apply. Of slow-downs the smallest share counts, of the numbers that count.
-- The two keys are joined: `in` reads all overrides of a limit, until the table was analyzed.
create function tollgate._overridden(limit_name text, of_key text, as_of timestamptz)
returns table (kind text, shards int2, storage text, flow "char", rate int8, period int8, most int8, max_reserved int8,
               phase int8, is_overridden bool, effect text, ends_at timestamptz) language sql stable as $$
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

-- Inserts a row, unless there is one.
create function tollgate._insert(storage text, limit_name text, key text, flow "char", value int8, ts int8,
                                 full_at int8) returns bool language plpgsql as $$
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

-- Writes a row if it still is as it was seen. If `seen` is null, the row is locked, and this writes it in any case.
create function tollgate._write(storage text, limit_name text, of_key text, flow "char", seen_value int8,
                                seen timestamptz, seen_full timestamptz, new_value int8, new_ts int8, new_full_at int8)
returns bool language plpgsql as $$
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
        l.mine := tollgate._insert(storage, limit_name, of_key, flow, 0, now, now);
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
    elsif not tollgate._fits(flow, value, ts, full_at, now, list) then
        raise exception using errcode = 'TG006', message = format(
            'limit %L is a wallet in its row or in its definition, and not in the other', limit_name);
    end if;
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

-- Asks one limit. It decides on the row as it was seen, and writes a grant if the row still is the same, so the
-- decision could have been made then. If the row has changed, it locks the row and decides again. A refusal locks
-- nothing. Expressions are prepared in each transaction, so the usual case has few and small ones.
create function tollgate._ask(limit_name text, key text, cost numeric, reserving bool, looking bool, as_of timestamptz,
                              up_to numeric default null, leaving numeric default null) returns tollgate.decision
language plpgsql as $$
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

create type tollgate._item as (
    place int8, name text, key text, micros int8, kind text, shards int2, storage text, flow "char", rate int8,
    period int8, most int8, max_debt int8, phase int8, value int8, ts int8, seen timestamptz, list int8[], full_at int8,
    mine bool, v tollgate._verdict, is_overridden bool, effect text, ends_at timestamptz);

-- Asks several limits, all or none. Requests for one limit and key are added up. As above, it writes each row if that
-- still is as it was seen, in lock order. If one is not, it locks that row and the later ones, and decides all requests
-- again: then it writes the earlier rows anew, or puts them back.
create function tollgate._ask_all(requests tollgate.request[], reserving bool, looking bool, as_of timestamptz)
returns tollgate.decision language plpgsql as $$
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

-- credit, debit, reset, settle and cancel, which succeed whatever the row holds. The answer is the balance; for settle
-- and cancel it is the amount that stays charged.
create function tollgate._change(verb text, limit_name text, key text, amount numeric, actual numeric,
                                 decided_at timestamptz, ready_at timestamptz, once text, kept interval,
                                 as_of timestamptz) returns numeric language plpgsql as $$
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

-- The functions for callers. A caller needs no right on the tables, and nothing of the caller's search path is run. If
-- row security is forced on the owner, the functions fail: a hidden row is not a missing one. Variables have the
-- collation of the caller's arguments, so each function names that of the columns with which they are compared.

create function tollgate.key(variadic parts text[]) returns text language sql immutable as $$
    select (select case when pg_catalog.count(*) = pg_catalog.count(part) then
                       pg_catalog.string_agg(pg_catalog.replace(pg_catalog.replace(
                           part collate pg_catalog."C", E'\\', E'\\\\'), '|', E'\\|'), '|' order by place) end
              from pg_catalog.unnest(parts) with ordinality p (part, place)) $$;
create function tollgate.request(limit_name text, key text, cost numeric default 1) returns tollgate.request
language sql immutable as $$ select row(limit_name, key, cost, false)::tollgate.request $$;
create function tollgate.request_global(limit_name text, cost numeric default 1) returns tollgate.request
language sql immutable as $$ select row(limit_name, '', cost, true)::tollgate.request $$;

create function tollgate.consume(limit_name text, key text, cost numeric default 1, up_to numeric default null,
                                 leaving numeric default null) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin
    return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, false, null, up_to, leaving);
end $$;
create function tollgate.consume_global(limit_name text, cost numeric default 1, up_to numeric default null,
                                        leaving numeric default null) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask(limit_name collate "C", '', cost, false, false, null, up_to, leaving); end $$;
create function tollgate.reserve(limit_name text, key text, cost numeric default 1) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, true, false, null); end $$;
create function tollgate.check(limit_name text, key text, cost numeric default 1, up_to numeric default null,
                               leaving numeric default null) returns tollgate.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as
$$ begin return tollgate._ask(limit_name collate "C", nullif(key, ''), cost, false, true, null, up_to, leaving); end $$;
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

create function tollgate.credit(limit_name text, key text, amount numeric, once text default null,
                                kept interval default '31 days') returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('credit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null);
end $$;
create function tollgate.debit(limit_name text, key text, amount numeric, once text default null,
                               kept interval default '31 days') returns numeric
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$ begin
    return tollgate._change('debit', limit_name collate "C", nullif(key, ''), amount, 0, null, null, once, kept, null);
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

-- The key that columns of a new row name, as SQL; without columns, everybody's. Triggers evaluate it with the owner's
-- rights, on rows of anybody's table, so it may run nothing of that table's owner. A name that stands alone is a column
-- or an error: behind a dot it could be a function of the row, or a cast. A type's output function, which only a
-- superuser can make, prints the column: a cast, which json would call, may be anybody's.
create function tollgate._key_of(arguments text[], of_table oid) returns text language plpgsql as $$
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
end $$;
-- `create trigger ... before insert on ... for each row execute function tollgate.limit_rows('limit', 'column', ...)`:
-- each row takes a token of the key that its columns name. The settings below decide how a column is written. Under the
-- session's settings a caller could write one instant in many ways, and each would be a key of its own.
create function tollgate.limit_rows() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set datestyle = 'ISO, YMD' set timezone = 'UTC'
set intervalstyle = 'postgres' set bytea_output = 'hex' set extra_float_digits = 1 set lc_monetary = 'C'
set quote_all_identifiers = off set row_security = off as $$
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
end $$;
-- `create trigger ... after insert on ... referencing new table as inserted for each statement execute function
-- tollgate.limit_inserts('limit', 'column', ...)`: the same for all rows of a statement at once, in the one lock order.
create function tollgate.limit_inserts() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set datestyle = 'ISO, YMD' set timezone = 'UTC'
set intervalstyle = 'postgres' set bytea_output = 'hex' set extra_float_digits = 1 set lc_monetary = 'C'
set quote_all_identifiers = off set row_security = off as $$
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
end $$;

-- Only the owner may call these functions, until somebody grants them (`tollgate migrate up --grant ROLE`).
revoke execute on all functions in schema tollgate from public;

do $$ begin
    perform pg_catalog.set_config('search_path', pg_catalog.current_setting('tollgate.path'), true);
end $$;
