-- Overrides, which operators set over the definitions, for a while or until somebody removes them: one for each limit,
-- key and label.

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
                                  reason text, set_by text, set_at timestamptz, forgotten_at timestamptz);

-- The override that a new one replaces, if its label had one, and the others that are live, for the key and for every
-- key.
create type tollgate.override_set as (replaced tollgate.override, others tollgate.override[]);

-- Sets other numbers of the same kind, `deny` or `unlimited`, for a key or for every key. This replaces the override
-- that its label had before, and no other. A capacity that is not given is the rate; a kind, period and max_reserved
-- are those of the definition. A day of `lasting` is 24 hours: it is added in UTC, where no clock changes.
create function tollgate.set_override(limit_name text, key text default null, effect text default 'numbers',
                                      rate numeric default null, period interval default null,
                                      capacity numeric default null, max_reserved numeric default null,
                                      kind text default null, every_key bool default false,
                                      starts_at timestamptz default null, ends_at timestamptz default null,
                                      lasting interval default null, reason text default null,
                                      set_by text default null, label text default '') returns tollgate.override_set
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set row_security = off as $$
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
        when d.kind = 'meter' then 'it is a meter, which refuses nobody and has no numbers'
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
        micros := coalesce(extract(epoch from period) * 1000000, d.period,
                           case when kind in ('wallet', 'monthly', 'billing') then 0 end);
        if tollgate._tokens(rate)::numeric + tollgate._tokens(capacity) + tollgate._tokens(max_reserved) + micros
           is null or extract(year from period) <> 0 or extract(month from period) <> 0 then
            raise exception using errcode = 'TG002',
                message = format('limit %L: these numbers are not valid', limit_name),
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
           and case o.effect when 'slowed' then o.rate < 1000000 and o.ends_at > clock
                             else tollgate._is_live(o.starts_at, o.ends_at, o.set_at, clock) end
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
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key); clock timestamptz := clock_timestamp();
begin
    if label is null then
        raise exception using errcode = 'TG002', message = format('limit %L: the label is null', limit_name);
    end if;
    delete from tollgate.overrides o
     where o.name = limit_name collate "C" and o.key = of_key and o.label = label collate "C";
    if not found then
        return false;
    end if;
    -- Rates that stood still until the end of a pause go on.
    if label = 'pause' then
        update tollgate.overrides o
           set starts_at = clock,
               ends_at = tollgate._instant(
                   tollgate._micros(o.ends_at) - tollgate._micros(o.starts_at) + tollgate._micros(clock))
         where o.name = limit_name collate "C" and (of_key = '' or o.key = of_key) and o.label = 'slowdown'
           and o.starts_at > clock;
    end if;
    return true;
end $$;

-- Reports that a call to the other side failed. A few that fail are tolerated: the row counts them, and leaves the
-- whole rate, or what it left. One more is trouble: the limit keeps a share of the rate that it has now, and its rate
-- grows back by itself, from the end of a pause that is live. Reports within the cool-down change nothing. At no later
-- instant does a report leave a larger share than there would have been. `forgets` is the time in which the whole rate
-- forgets one that is tolerated; where it is null, three of a hundred calls of the limit are, and none if it is not
-- defined. Returns the slow-down that counts.
create function tollgate.slow_down(limit_name text, key text default null, every_key bool default false,
                                   percent int4 default 70, least_percent int4 default 5,
                                   recovers interval default '1 minute', cool_down interval default '2 seconds',
                                   forgets interval default null)
returns tollgate.override
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
#variable_conflict use_variable
declare
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key);
    clock timestamptz; now int8; fault text; was tollgate.override; is_live bool; own int8; present int8; share int8;
    starts_at int8; ends_at int8; resumes_at int8; each int8; slowly int8; forgotten int8; written tollgate.override;
begin
    fault := case
        when (percent between 1 and 99) is not true then 'percent is what a report leaves of the rate, from 1 to 99'
        when (least_percent between 1 and 99) is not true
        then 'least_percent is the least that reports leave of the rate, from 1 to 99'
        when (recovers between '1 second' and '1 day') is not true
        then 'recovers is the time in which the whole rate would grow back, of one second to one day'
        when (cool_down between '0' and '1 day') is not true
        then 'cool_down is the time between two cuts, of one day at most'
        when (coalesce(forgets, '0') between '0' and '1 day') is not true
        then 'forgets is the time in which a tolerated report is forgotten, of one day at most'
        when exists (select from tollgate.limits l where l.name = limit_name collate "C"
                                                     and l.kind in ('meter', 'wallet', 'monthly', 'billing'))
        then 'it has no rate that could be slowed down' end;
    if fault is not null then
        raise exception using errcode = 'TG002', message = format('limit %L: %s', limit_name, fault);
    end if;
    -- A concurrency limit is taken to have n calls a second.
    each := least(86400000000, coalesce(
        extract(epoch from forgets) * 1000000,
        (select div(case l.kind when 'concurrency' then 1000000 else l.period end * 100000000.0, l.rate * 3.0)
           from tollgate.limits l where l.name = limit_name collate "C"), 0));
    -- Most reports come within the cool-down, and take no lock. The others take turns on their node.
    for attempt in 0 .. 2 loop
        if attempt = 1 then
            perform tollgate._take_turns(limit_name);
        end if;
        clock := clock_timestamp();
        now := tollgate._micros(clock);
        select o.* into was from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key = of_key and o.label = 'slowdown';
        is_live := coalesce(was.rate < 1000000 and was.ends_at > clock, false);
        -- A clock that has stepped back may show an earlier instant.
        if is_live and abs(now - tollgate._micros(was.set_at)) < extract(epoch from cool_down) * 1000000 then
            return was;
        end if;
        continue when attempt = 0;
        own := case when is_live then tollgate._share(was.rate, was.starts_at, was.ends_at, clock) else 1000000 end;
        -- A key may also be under a slow-down of every key: the smaller share is the present one.
        present := least(own, (select tollgate._share(o.rate, o.starts_at, o.ends_at, clock) from tollgate.overrides o
                                where o.name = limit_name collate "C" and o.key = '' and o.label = 'slowdown'
                                  and o.ends_at > clock));
        resumes_at := (select max(tollgate._micros(o.ends_at)) from tollgate.overrides o
                        where o.name = limit_name collate "C" and o.key in (of_key, '') and o.label = 'pause'
                          and tollgate._is_live(o.starts_at, o.ends_at, o.set_at, clock));
        -- A slower rate forgets less. It tolerates two reports, and as many as it forgets in half a second. A report
        -- that comes with a pause is no noise.
        slowly := least(86400000000, each * 1000000 / present);
        forgotten := greatest(now, tollgate._micros(was.forgotten_at)) + slowly;
        if slowly > 0 and forgotten - now <= 500000 + 2 * slowly and resumes_at is null then
            written := tollgate._report(limit_name, of_key, 'slowdown', 'slowed',
                                        case when is_live then was.rate else 1000000 end,
                                        case when is_live then was.set_at else clock end,
                                        case when is_live then was.starts_at else clock end,
                                        case when is_live then was.ends_at else tollgate._instant(forgotten) end,
                                        tollgate._instant(forgotten),
                                        case when is_live then was.reason else 'a call failed' end, was);
            if written.name is not null then
                return written;
            end if;
            continue;
        end if;
        share := greatest(1, least(own, greatest(least_percent * 10000, present * percent / 100)));
        -- A line that begins no higher, and grows and ends no sooner, lies nowhere above the one before. Shares grow at
        -- whole seconds, so the end is a second later.
        starts_at := greatest(now, case when is_live then tollgate._micros(was.starts_at) end);
        ends_at := greatest(starts_at + (1000000 - share) * (extract(epoch from recovers) * 1000000)::int8 / 1000000,
                            case when is_live then tollgate._micros(was.ends_at) + 1000000 end);
        written := tollgate._report(limit_name, of_key, 'slowdown', 'slowed', share, clock,
                                    tollgate._instant(greatest(starts_at, resumes_at)),
                                    tollgate._instant(ends_at + greatest(resumes_at - starts_at, 0)), null,
                                    'trouble was reported', was);
        if written.name is not null then
            return written;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = format(
        'limit %L: somebody else reports on it', limit_name);
end $$;

-- Reports that the other side asks callers to wait: nothing is granted until then, for a day at most. A pause that ends
-- later stays. The end is rounded up to a second, so that many reports of one answer write once. Returns the pause that
-- counts; null if none does.
--
-- An answer tells `as_told`, and others of the same role correct it: one that names less than half of what is left ends
-- the pause then. Nobody corrects a pause that was also reported otherwise.
create function tollgate.pause(limit_name text, key text default null, every_key bool default false,
                               until timestamptz default null, lasting interval default null,
                               as_told bool default false)
returns tollgate.override
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
#variable_conflict use_variable
declare
    of_key text collate "C" := tollgate._whom(limit_name, key, every_key);
    clock timestamptz; ends_at timestamptz; is_over bool; was tollgate.override; is_live bool;
    told constant text := 'an answer asked callers to wait'; was_told bool; may_correct bool; corrects bool;
    written tollgate.override;
begin
    if num_nonnulls(until, lasting) <> 1 then
        raise exception using errcode = 'TG002', message = format('limit %L: say until or lasting', limit_name);
    elsif exists (select from tollgate.limits l where l.name = limit_name collate "C" and l.kind = 'meter') then
        raise exception using errcode = 'TG002', message = format(
            'limit %L: it is a meter, which refuses nobody', limit_name);
    end if;
    for attempt in 0 .. 2 loop
        if attempt = 1 then
            perform tollgate._take_turns(limit_name);
        end if;
        clock := clock_timestamp();
        -- In microseconds: in some zones a day that is added to an instant has another length.
        ends_at := least(until, tollgate._instant(tollgate._micros(clock) + (extract(epoch from greatest('0', least(
            lasting, '1 day'))) * 1000000)::int8), tollgate._instant(tollgate._micros(clock) + 86400000000));
        is_over := ends_at <= clock;
        ends_at := to_timestamp(ceil(extract(epoch from ends_at)));
        select o.* into was from tollgate.overrides o
         where o.name = limit_name collate "C" and o.key = of_key and o.label = 'pause';
        is_live := coalesce(tollgate._is_live(was.starts_at, was.ends_at, was.set_at, clock), false);
        was_told := is_live and was.reason = told;
        may_correct := as_told and (not is_live or was_told and was.set_by = session_user);
        corrects := is_live and may_correct and was.ends_at - ends_at > ends_at - clock;
        if is_over or is_live and was.ends_at >= ends_at and not corrects and (as_told or not was_told) then
            return case when is_live then was end;
        end if;
        continue when attempt = 0;
        -- A pause that lasts longer is one with the pause that it replaces.
        ends_at := case when is_live and not corrects then greatest(ends_at, was.ends_at) else ends_at end;
        written := tollgate._report(limit_name, of_key, 'pause', 'deny', null, clock,
                                    least(clock, case when is_live then was.starts_at end), ends_at, null,
                                    case when may_correct then told else 'callers were asked to wait' end, was);
        if written.name is not null then
            -- Rates that were growing back stand still until it ends, and no longer than that if it is corrected. They
            -- grow at whole seconds, so those that had begun to grow end a second later.
            update tollgate.overrides o
               set rate = tollgate._share(o.rate, o.starts_at, o.ends_at, clock), starts_at = ends_at,
                   ends_at = tollgate._instant(
                       tollgate._micros(o.ends_at) + tollgate._micros(ends_at)
                       - tollgate._micros(greatest(o.starts_at, clock))
                       + case when o.starts_at < clock then 1000000 else 0 end)
             where o.name = limit_name collate "C" and (of_key = '' or o.key = of_key) and o.label = 'slowdown'
               and o.rate < 1000000 and o.ends_at > clock
               and (o.starts_at < ends_at or corrects and o.starts_at = was.ends_at);
            return written;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = format(
        'limit %L: somebody else reports on it', limit_name);
end $$;

-- The most slow-downs and pauses that are live at once, of all limits and keys. Each process reads all overrides when
-- one has changed. The owner may replace this one with another number.
create function tollgate._max_reports() returns int4 language sql immutable as 'select 10000';

-- Reports on one limit take turns until their transactions end: a pause moves the slow-downs of each key.
create function tollgate._take_turns(limit_name text) returns void language sql as $$
    select pg_advisory_xact_lock(hash_record_extended(row('tollgate.overrides'::text, limit_name, 'reports'::text), 0))
$$;

-- Writes what was reported, unless the row is not as it was read: an advisory lock is one node's, and on Citus a report
-- through another node may have come first. Then this returns null, and the next attempt succeeds, because the
-- statement keeps other writers of the table waiting on all nodes. Also removes earlier reports that are over, and no
-- longer count. One transaction at a time removes, so that two never wait for each other.
create function tollgate._report(limit_name text, of_key text, label text, effect text, share int8, clock timestamptz,
                                 starts_at timestamptz, ends_at timestamptz, forgotten_at timestamptz, reason text,
                                 was tollgate.override)
returns tollgate.override language plpgsql as $$
#variable_conflict use_variable
declare
    written tollgate.override;
begin
    if pg_try_advisory_xact_lock(
           hash_record_extended(row('tollgate.overrides'::text, 'reports'::text), 0)) then
        delete from tollgate.overrides o
         where (o.name <> limit_name collate "C" or o.key <> of_key collate "C")
           and o.label in ('slowdown', 'pause') and o.ends_at <= clock
           and (o.label <> 'pause' or clock - o.ends_at >= o.ends_at - o.starts_at);
    end if;
    if was.name is null and tollgate._max_reports() <= (
           select count(*) from (select from tollgate.overrides o where o.label in ('slowdown', 'pause')
                                  limit tollgate._max_reports()) o) then
        raise exception using errcode = 'TG011', message = format(
            'limit %L: %s slow-downs and pauses are live, and there may be no more', limit_name,
            tollgate._max_reports()),
            hint = 'Report on fewer keys, or let the owner replace tollgate._max_reports().';
    end if;
    insert into tollgate.overrides as o (name, key, label, effect, rate, starts_at, ends_at, reason, set_by, set_at,
                                         forgotten_at)
    values (limit_name, of_key, label, effect, share, starts_at, ends_at, reason, session_user, clock, forgotten_at)
        on conflict on constraint overrides_pkey do update
       set effect = excluded.effect, rate = excluded.rate, starts_at = excluded.starts_at, ends_at = excluded.ends_at,
           reason = excluded.reason, set_by = excluded.set_by, set_at = excluded.set_at,
           forgotten_at = excluded.forgotten_at
     where (was.set_at, was.ends_at) = (o.set_at, o.ends_at) and was.forgotten_at is not distinct from o.forgotten_at;
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

-- Only the owner may call the functions, until somebody grants them (`tollgate migrate up --grant ROLE`).
revoke execute on all functions in schema tollgate from public;
