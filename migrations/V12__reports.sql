-- `slow_down` tolerates three reports, where it was two, and a cut leaves 65 % of the rate, where it was 70: at 40
-- calls a second, one stray failure in a hundred cut the rate once a minute. `pause` and `remove_override` let the
-- rates of a limit follow all of its pauses, also on Citus. The rest is as V11 had it.

-- Reports that a call to the other side failed. A few that fail are tolerated: the row counts them, and leaves the
-- whole rate, or what it left. One more is trouble: the limit keeps a share of the rate that it has now, and its rate
-- grows back by itself, from the end of a pause that is live. Reports within the cool-down change nothing. At no later
-- instant does a report leave a larger share than there would have been. `forgets` is the time in which the whole rate
-- forgets one that is tolerated; where it is null, three of a hundred calls of the limit are, and none if it is not
-- defined. Returns the slow-down that counts.
create or replace function tollgate.slow_down(limit_name text, key text default null, every_key bool default false,
                                              percent int4 default 65, least_percent int4 default 5,
                                              recovers interval default '1 minute',
                                              cool_down interval default '2 seconds', forgets interval default null)
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
        -- A slower rate forgets less. It tolerates three reports, and as many as it forgets in half a second. A report
        -- that comes with a pause is no noise.
        slowly := least(86400000000, each * 1000000 / present);
        forgotten := greatest(now, tollgate._micros(was.forgotten_at)) + slowly;
        if slowly > 0 and forgotten - now <= 500000 + 3 * slowly and resumes_at is null then
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

-- Removes the override of a label. Returns whether there was one.
create or replace function tollgate.remove_override(limit_name text, key text default null,
                                                    every_key bool default false, label text default '')
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
    if label = 'pause' then
        perform tollgate._follow_pauses(limit_name, of_key, clock);
    end if;
    return true;
end $$;

-- Reports that the other side asks callers to wait: nothing is granted until then, for a day at most. A pause that ends
-- later stays. The end is rounded up to a second, so that many reports of one answer write once. Returns the pause that
-- counts; null if none does.
--
-- An answer tells `as_told`, and others of the same role correct it: one that names less than half of what is left ends
-- the pause then. Nobody corrects a pause that was also reported otherwise.
create or replace function tollgate.pause(limit_name text, key text default null, every_key bool default false,
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
            perform tollgate._follow_pauses(limit_name, of_key, clock);
            return written;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = format(
        'limit %L: somebody else reports on it', limit_name);
end $$;

-- Lets the rates of a limit stand still until its live pauses end, and grow from then on; without a pause from now on.
-- Shares grow at whole seconds, so a rate that had begun to grow is whole a second later. Row by row, because Citus
-- updates a table of which each node has a copy by constants alone.
create function tollgate._follow_pauses(limit_name text, of_key text, clock timestamptz) returns void
language plpgsql as $$
#variable_conflict use_variable
declare
    slowed record; resumes_at timestamptz; share int8; whole_at timestamptz;
begin
    for slowed in
        select o.key, o.rate, o.starts_at, o.ends_at,
               (select max(p.ends_at) from tollgate.overrides p
                 where p.name = o.name and p.key in (o.key, '') and p.label = 'pause'
                   and tollgate._is_live(p.starts_at, p.ends_at, p.set_at, clock)) as paused_until
          from tollgate.overrides o
         where o.name = limit_name collate "C" and (of_key = '' or o.key = of_key) and o.label = 'slowdown'
           and o.rate < 1000000 and o.ends_at > clock
         order by o.key
    loop
        resumes_at := greatest(slowed.paused_until, clock);
        continue when resumes_at = slowed.starts_at or greatest(resumes_at, slowed.starts_at) <= clock;
        share := tollgate._share(slowed.rate, slowed.starts_at, slowed.ends_at, clock);
        whole_at := tollgate._instant(tollgate._micros(slowed.ends_at) + tollgate._micros(resumes_at)
                                      - tollgate._micros(greatest(slowed.starts_at, clock))
                                      + case when slowed.starts_at < clock then 1000000 else 0 end);
        update tollgate.overrides o set rate = share, starts_at = resumes_at, ends_at = whole_at
         where o.name = limit_name collate "C" and o.key = slowed.key and o.label = 'slowdown';
    end loop;
end $$;

-- Only the owner may call the functions, until somebody grants them (`tollgate migrate up --grant ROLE`).
revoke execute on all functions in schema tollgate from public;
