select tollgate.key('a|b', chr(92), chr(65));

select concat_ws(' ', tollgate.define('ten', 'token_bucket', 10, '100 days'),
                      tollgate.define('steps', 'stepped_bucket', 10, '100 days'),
                      tollgate.define('window', 'fixed_window', 10, '1 hour'),
                      tollgate.define('aligned', 'fixed_window', 10, '1000 days', start => '02:03:04.5'),
                      tollgate.define('money', 'wallet', max_reserved => 5));

select string_agg(to_jsonb(l)::text, ' ' order by name) from tollgate.limits l;

select tollgate._phase('window', 'k|' || chr(92), 3600000000)::text;

select tollgate._fingerprint('credit', 'money', 'k', 5)::text;

select concat_ws(' ', tollgate.credit('money', 'k', 5.5, 'id', '1 day'),
                      tollgate.credit('money', 'k', 5.5, 'id', '1 day'));

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by) from tollgate.consume('ten', 'k', 3.5);

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by) from tollgate.reserve('steps', 'k', 3.5);

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by) from tollgate.consume('aligned', 'k', 3.5);

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by) from tollgate.consume('money', 'k', 25, up_to => 1);

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by)
  from tollgate.consume_all(array[tollgate.request('ten', 'k', 4), tollgate.request_global('steps', 4)]);

select concat_ws(' ', granted, amount, round(remaining, 1), refused_by, round((retry_after_seconds / 86400)::numeric),
                 round(extract(epoch from retry_after) / 86400)) from tollgate.consume('ten', 'k', 5);

select tollgate.settle('ten', 'k', 4, 1, now())::text;

do $$ begin perform tollgate.set_override('ten', 'bob', rate => 20, lasting => '1 day', reason => 'x'); end $$;

select granted::text from tollgate.check('ten', 'bob', 20);

create table public.posts (at timestamptz, degrees float8, digest bytea, span interval, about regclass);

create trigger limited before insert on public.posts for each row
       execute function tollgate.limit_rows('ten', 'at', 'degrees', 'digest', 'span', 'about');

create trigger limited_together after insert on public.posts referencing new table as inserted for each statement
       execute function tollgate.limit_inserts('ten', 'at', 'degrees', 'digest', 'span', 'about');

insert into public.posts values ('2026-01-02 03:04:05.6+00', 1 / 3::float8, decode('5c00', 'hex'), '1 day 02:03:04', 'pg_class');

select string_agg(concat_ws(' ', name, key, round(value / 100000.0), list::text), ', ' order by name, key) from tollgate.durable;

create table public.told (message text);

do $$ begin
    perform tollgate.granted(tollgate.consume('ten', 'k', 10));
exception when sqlstate 'PT429' then
    insert into public.told values (sqlerrm);
end $$;

select regexp_replace(message, '[0-9.]{4,}', 'n') from public.told;
