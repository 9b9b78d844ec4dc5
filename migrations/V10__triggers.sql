-- Triggers that ask: each new row of a table takes a token of the key that its columns name.

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
    execute 'select array_agg(row($1, k.key, k.count, $2, null)::tollgate.request)
               from (select ' || tollgate._key_of(tg_argv, tg_relid)
            || ' as key, count(*) as count from inserted group by 1) k'
       into requests using tg_argv[0], tg_nargs = 1;
    if requests is not null then
        perform tollgate.granted(tollgate._ask_all(requests, false, false, null));
    end if;
    return null;
end $$;
