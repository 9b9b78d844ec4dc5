-- Runs statements one after another; what each ends with. Every second one is undone.
create function public.tried(statements text[]) returns table (code text, message text) language plpgsql as $$
#variable_conflict use_variable
begin
    for n in 1 .. cardinality(statements) loop
        begin
            code := ''; message := '';
            execute statements[n];
            if n % 2 = 0 then
                raise exception using errcode = 'UNDO1';
            end if;
        exception when sqlstate 'UNDO1' then
        when others then
            code := sqlstate;
            -- Not each encoding of a client is that of the test.
            message := regexp_replace(sqlerrm, '[^ -~]', '?', 'g');
        end;
        return next;
    end loop;
end $$;

insert into tollgate.limits (name, kind, rate, period, capacity, max_reserved) values
    ('ten', 'token_bucket', 10000000, 86400000000, 10000000, 0),
    ('owing', 'token_bucket', 10000000, 60000000, 10000000, 9223372036854775807),
    ('bounded', 'token_bucket', 10000000, 60000000, 10000000, 5000000),
    ('window', 'fixed_window', 10000000, 60000000, 10000000, 0),
    ('monthly', 'monthly', 10000000, 0, 10000000, 5000000),
    ('billing', 'billing', 10000000, 0, 20000000, 0),
    ('owing_window', 'fixed_window', 10000000, 60000000, 10000000, 9223372036854775807),
    ('steps', 'stepped_bucket', 10000000, 60000000, 20000000, 9223372036854775807),
    ('money', 'wallet', 0, 0, 0, 0),
    ('overdrawn', 'wallet', 0, 0, 0, 9223372036854775807),
    ('sliding', 'sliding_window', 10000000, 60000000, 10000000, 0),
    ('running', 'concurrency', 10, 60000000, 10, 0),
    ('denied', 'token_bucket', 10000000, 60000000, 10000000, 0),
    ('free', 'token_bucket', 10000000, 60000000, 10000000, 0),
    ('huge', 'token_bucket', 9223372036854775807, 1, 9223372036854775807, 9223372036854775807),
    ('slow', 'token_bucket', 1, 31536000000000000, 9223372036854775807, 9223372036854775807),
    ('tiny', 'stepped_bucket', 1, 31536000000000000, 1, 9223372036854775807),
    ('slow_window', 'fixed_window', 1, 31536000000000000, 1, 9223372036854775807),
    ('short', 'fixed_window', 9223372036854775807, 1, 9223372036854775807, 9223372036854775807);
insert into tollgate.limits (name, kind, rate, period, capacity, shards)
values ('sharded', 'token_bucket', 10000000, 60000000, 10000000, 2);
insert into tollgate.limits (name, kind, rate, period, capacity, storage)
values ('quick', 'token_bucket', 10000000, 60000000, 10000000, 'ephemeral');
select tollgate.set_override('denied', every_key => true, effect => 'deny', reason => 'x'),
       tollgate.set_override('free', every_key => true, effect => 'unlimited', reason => 'x');

insert into tollgate.durable (part, name, key, shard, value, ts, full_at, list)
select 0, l.name, k.key, 0, k.value, k.ts, k.ts, case when l.kind = 'wallet' or k.key = 'listed' then '{3}'::int8[] end
  from tollgate.limits l
 cross join (values ('min', -9223372036854775808, now()), ('max', 9223372036854775807, now()), ('listed', 5, now()),
                    ('far', 0, timestamptz '262142-12-31 00:00:00+00'),
                    ('past', -5000000, timestamptz '4713-01-01 00:00:00+00 BC')) k (key, value, ts);
