//! Triggers that charge a limit for the rows that are inserted.

use tollgate::Key;

use super::asked::one;
use super::{fails, owner};
use crate::teller::run;
use crate::world::World;

#[tokio::test]
async fn triggers_limit_rows_for_each_key() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, "select tollgate.define('messages', 'token_bucket', 3, '1 day')").await;
    run(&mut conn, "select tollgate.define('all', 'token_bucket', 5, '1 day')").await;
    run(
        &mut conn,
        "create table public.one (author int, room text);
         create trigger limited before insert on public.one for each row
           execute function tollgate.limit_rows('messages', 'author', 'room');
         create table public.many (author int, room text);
         create trigger limited after insert on public.many referencing new table as inserted for each statement
                execute function tollgate.limit_inserts('messages', 'author', 'room');
         create trigger limited_together after insert on public.many referencing new table as inserted
           for each statement
                execute function tollgate.limit_inserts('all')",
    )
    .await;
    for table in ["one", "many"] {
        run(&mut conn, "truncate tollgate.durable").await;
        let insert = |rows: &str| format!("insert into public.{table} {rows}");
        run(&mut conn, &insert("values (1, 'a|b'), (1, 'a|b'), (2, 'a|b')")).await;
        let key = Key::new((1, "a|b")).unwrap();
        assert_eq!(
            one::<String>(&mut conn, &format!(r"select tollgate.balance('messages', '{key}')::int::text")).await,
            "1"
        );
        assert_eq!(fails(&mut conn, &insert("values (1, 'a|b'), (1, 'a|b')")).await, "PT429");
        run(&mut conn, &insert("values (1, 'a|b')")).await;
        assert_eq!(fails(&mut conn, &insert("values (1, 'a|b')")).await, "PT429");
        assert_eq!(fails(&mut conn, &insert("values (null, 'a|b')")).await, "TG002");
        run(&mut conn, &insert("select where false")).await;
        assert_eq!(one::<i64>(&mut conn, &format!("select count(*) from public.{table}")).await, 4);
    }
    assert_eq!(
        one::<String>(
            &mut conn,
            "select (tollgate.check_all(array[tollgate.request_global('all', 0)])).remaining::int::text"
        )
        .await,
        "1"
    );
}

/// Both triggers make one key, and it does not depend on the settings by which the inserting session writes texts.
#[tokio::test]
async fn the_key_of_a_trigger_is_the_same_whatever_the_session_is_set_to() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(
        &mut conn,
        "select tollgate.define('ten', 'token_bucket', 10, '1 day');
         create table public.one (at timestamptz, degrees float8, digest bytea, span interval);
         create trigger limited before insert on public.one for each row
                execute function tollgate.limit_rows('ten', 'at', 'degrees', 'digest', 'span');
         create trigger limited_together after insert on public.one referencing new table as inserted
                for each statement execute function tollgate.limit_inserts('ten', 'at', 'degrees', 'digest', 'span')",
    )
    .await;
    for settings in [
        "",
        "set timezone = 'Pacific/Chatham'; set datestyle = German; set extra_float_digits = -15;
                          set bytea_output = escape; set intervalstyle = iso_8601",
    ] {
        run(&mut conn, settings).await;
        run(&mut conn, "insert into public.one values ('2026-01-01 00:00:00+00', 1.0 / 3, 'abc', '1 day 02:03')").await;
    }
    let keys: Vec<String> = sqlx::query_scalar("select key from tollgate.durable").fetch_all(&mut conn).await.unwrap();
    assert_eq!(keys, [r"2026-01-01 00:00:00+00|0.3333333333333333|\\x616263|1 day 02:03:00"]);
}

/// For a trigger of a row such an update is an insert, and PostgreSQL does not tell it from one.
#[tokio::test]
async fn an_update_that_moves_a_row_is_charged_by_a_trigger_of_rows_and_not_by_one_of_statements() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(
        &mut conn,
        "select tollgate.define('ten', 'token_bucket', 10, '100 days');
         create table public.posts (author text, month int) partition by list (month);
         create table public.posts_1 partition of public.posts for values in (1);
         create table public.posts_2 partition of public.posts for values in (2)",
    )
    .await;
    for (author, trigger, charged) in [
        ("before", "before insert on public.posts for each row execute function tollgate.limit_rows", 2),
        ("after", "after insert on public.posts for each row execute function tollgate.limit_rows", 2),
        (
            "together",
            "after insert on public.posts referencing new table as inserted for each statement
             execute function tollgate.limit_inserts",
            1,
        ),
    ] {
        let moved = format!(
            "create trigger limited {trigger}('ten', 'author');
             insert into public.posts values ('{author}', 1);
             update public.posts set month = 2 where author = '{author}';
             drop trigger limited on public.posts"
        );
        run(&mut conn, &moved).await;
        let left = format!("select tollgate.balance('ten', '{author}')::int");
        assert_eq!(one::<i32>(&mut conn, &left).await, 10 - charged, "{trigger}");
    }
    // Nor does the trigger of statements see what is inserted into a partition by its own name.
    let direct = "create trigger limited after insert on public.posts referencing new table as inserted
                      for each statement execute function tollgate.limit_inserts('ten', 'author');
                  insert into public.posts_1 values ('direct', 1)";
    run(&mut conn, direct).await;
    assert_eq!(one::<i32>(&mut conn, "select tollgate.balance('ten', 'direct')::int").await, 10);
}
