-- Overrides, which operators set over the definitions, for a while or until somebody removes them: one for each limit,
-- key and label.

do $$ begin
    perform pg_catalog.set_config('tollgate.path', pg_catalog.current_setting('search_path'), true);
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
end $$;

-- The key of an override; the empty one stands for every key.
create function tollgate._whom(limit_name text, key text, every_key bool) returns text
language plpgsql as $$ begin
    if (limit_name <> '' and case when every_key then key is null else key <> '' and octet_length(key) <= 512 end)
       is not true then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: name a key of 1 to 512 bytes, or say every_key => true', limit_name);
    end if;
    return coalesce(key, '');
end $$;

-- The columns of tollgate.overrides, as a type of its own: a row that Citus reads is of another table, and an object
-- that depends on a table goes when Citus takes that table back.
create type tollgate.override as (name text, key text, label text, effect text, kind text, rate int8, period int8,
                                  capacity int8, max_reserved int8, starts_at timestamptz, ends_at timestamptz,
                                  reason text, set_by text, set_at timestamptz);

-- The override that a new one replaces, if its label had one, and the others that are live, for the key and for every
-- key.
create type tollgate.override_set as (replaced tollgate.override, others tollgate.override[]);

-- Sets other numbers of the same kind, `deny` or `unlimited`, for a key or for every key. This replaces the override
-- that its label had before, and no other. A capacity that is not given is the rate; a kind, period and max_reserved
-- are those of the definition.
create function tollgate.set_override(limit_name text, key text default null, effect text default 'numbers',
                                      rate numeric default null, period interval default null,
                                      capacity numeric default null, max_reserved numeric default null,
                                      kind text default null, every_key bool default false,
                                      starts_at timestamptz default null, ends_at timestamptz default null,
                                      lasting interval default null, reason text default null,
                                      set_by text default null, label text default '') returns tollgate.override_set
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
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
    if starts_at > clock and was.starts_at <= clock and was.ends_at > clock then
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
           and clock >= o.starts_at and clock < o.ends_at
         order by o.key = '', o.set_at desc, o.label desc))::tollgate.override_set;
-- The last two are those of an instant that does not fit, and of an infinite span.
exception when integrity_constraint_violation or numeric_value_out_of_range or datetime_field_overflow
            or feature_not_supported then
    raise exception using errcode = 'TG002', detail = sqlerrm,
        message = format('limit %L: its name, its numbers or its instants are not valid', limit_name);
end $$;

-- Removes the override of a label. Returns whether there was one.
create function tollgate.remove_override(limit_name text, key text default null, every_key bool default false,
                                         label text default '')
returns bool language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
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

revoke execute on all functions in schema tollgate from public;

do $$ begin
    perform pg_catalog.set_config('search_path', pg_catalog.current_setting('tollgate.path'), true);
end $$;
