//! The traps that the guides warn of, as they are.

use std::process::Command;

use sqlx::Executor;
use tokio::task::JoinSet;
use tollgate_embedded::find_programs;

use super::asked::one;
use super::{fails, owner};
use crate::gate::stage::soon;
use crate::teller::run;
use crate::world::{OWNER, World};

const TEN: &str = "select tollgate.define('ten', 'token_bucket', 10, '100 days')";

#[tokio::test]
async fn a_composite_that_is_taken_apart_calls_once_for_each_column() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    run(&mut conn, "select (tollgate.consume('ten', 'apart')).*").await;
    run(&mut conn, "select * from tollgate.consume('ten', 'from')").await;
    let left = "select concat_ws(' ', tollgate.balance('ten', 'apart')::int, tollgate.balance('ten', 'from')::int)";
    assert_eq!(one::<String>(&mut conn, left).await, "1 9");
}

#[tokio::test]
async fn a_condition_charges_each_row_that_is_looked_at() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    run(
        &mut conn,
        "select n from generate_series(1, 3) n where (tollgate.consume('ten', 'k')).granted order by n limit 1",
    )
    .await;
    assert_eq!(one::<i32>(&mut conn, "select tollgate.balance('ten', 'k')::int").await, 7);
}

#[tokio::test]
async fn who_does_not_look_at_granted_is_not_limited() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    let insert = "insert into pg_temp.messages values ('hello')";
    run(&mut conn, "create temporary table messages (body text); select tollgate.consume('ten', 'k', 10)").await;
    run(&mut conn, &format!("begin; select tollgate.consume('ten', 'k'); {insert}; commit")).await;
    let looking = format!("begin; select tollgate.granted(tollgate.consume('ten', 'k')); {insert}; commit");
    assert_eq!(fails(&mut conn, &looking).await, "PT429");
    run(&mut conn, "rollback").await;
    assert_eq!(one::<i64>(&mut conn, "select count(*) from pg_temp.messages").await, 1);
}

/// A decision with a null in a column is neither null nor not null. What `granted` returns is true.
#[tokio::test]
async fn a_condition_on_granted_inserts_what_is_charged_however_it_is_written() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, &format!("{TEN}; create temporary table messages (body text)")).await;
    let insert = |condition: &str| format!("insert into pg_temp.messages select 'hello' where {condition}");
    for (charged, condition) in
        [(1, "tollgate.granted({})"), (2, "tollgate.granted({}) is not null"), (3, "tollgate.granted({}) is true")]
    {
        run(&mut conn, &insert(&condition.replace("{}", "tollgate.consume('ten', 'k')"))).await;
        let told = "select tollgate.balance('ten', 'k')::int || ' ' || (select count(*) from pg_temp.messages)";
        assert_eq!(one::<String>(&mut conn, told).await, format!("{} {charged}", 10 - charged), "{condition}");
    }
    let unread = insert("tollgate.consume('ten', 'other') is not null");
    run(&mut conn, &unread).await;
    let told = "select tollgate.balance('ten', 'other')::int || ' ' || (select count(*) from pg_temp.messages)";
    assert_eq!(one::<String>(&mut conn, told).await, "9 3", "the trap: charged, and not inserted");
    let refused = "insert into pg_temp.messages select 'hello' from tollgate.consume('ten', 'k', 8) d
                    where tollgate.granted(d)";
    assert_eq!(fails(&mut conn, refused).await, "PT429");
}

#[tokio::test]
async fn two_calls_in_opposite_orders_deadlock() {
    let world = World::new().await;
    let (mut ada, mut bob) = (owner(&world).await, owner(&world).await);
    run(&mut ada, TEN).await;
    run(&mut ada, "select tollgate.consume('ten', 'a'), tollgate.consume('ten', 'b')").await;
    run(&mut ada, "begin; select tollgate.consume('ten', 'a')").await;
    run(&mut bob, "begin; select tollgate.consume('ten', 'b')").await;
    let by_ada = ada.execute("select tollgate.consume('ten', 'b')");
    let by_bob = bob.execute("select tollgate.consume('ten', 'a')");
    let told: [_; 2] = soon(Box::pin(async { tokio::join!(by_ada, by_bob) })).await.into();
    let codes =
        told.map(|told| told.err().map(|error| error.as_database_error().unwrap().code().unwrap().into_owned()));
    assert!(codes.contains(&None) && codes.contains(&Some("40P01".to_owned())), "{codes:?}");
}

#[tokio::test]
async fn a_granted_row_is_locked_until_the_commit() {
    let world = World::new().await;
    let (mut conn, mut other) = (owner(&world).await, owner(&world).await);
    run(&mut conn, TEN).await;
    run(&mut conn, "select tollgate.consume('ten', 'k')").await;
    run(&mut conn, "begin; select tollgate.consume('ten', 'k')").await;
    let free = "select from tollgate.durable for update nowait";
    assert_eq!(fails(&mut other, free).await, "55P03");
    run(&mut conn, "commit").await;
    run(&mut other, free).await;
}

#[tokio::test]
async fn what_nobody_reads_is_not_asked() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, &format!("{TEN}; create temporary table messages (body text)")).await;
    let left = "select tollgate.balance('ten', 'k')::int";
    let granted = "select tollgate.granted(tollgate.consume('ten', 'k'))";
    for unread in [
        format!("with asked as ({granted}) insert into pg_temp.messages values ('hello')"),
        format!("insert into pg_temp.messages select 'hello' where exists ({granted})"),
    ] {
        run(&mut conn, &unread).await;
        assert_eq!(one::<i32>(&mut conn, left).await, 10, "{unread}");
    }
    for (read, rest) in [
        ("insert into pg_temp.messages select 'hello' from tollgate.consume('ten', 'k', 4) where granted", 6),
        (
            "with asked as (select granted from tollgate.consume('ten', 'k', 4))
             insert into pg_temp.messages select 'hello' from asked where granted",
            2,
        ),
        ("insert into pg_temp.messages select 'hello' from tollgate.consume('ten', 'k', 4) where granted", 2),
    ] {
        run(&mut conn, read).await;
        assert_eq!(one::<i32>(&mut conn, left).await, rest, "{read}");
    }
    assert_eq!(one::<i64>(&mut conn, "select count(*) from pg_temp.messages").await, 4);
}

#[tokio::test]
async fn a_policy_that_selects_charges_once_a_statement() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, TEN).await;
    let role = world.role().await;
    world
        .sql(&format!(
            "{}; create table public.posts (author text); grant all on public.posts to {role};
             alter table public.posts enable row level security",
            tollgate::migrate::grants(&role, tollgate::migrate::Callers::Applications)
        ))
        .await;
    let mut inserting = world.admin().await;
    run(&mut inserting, &format!("set role {role}")).await;
    for (condition, author, charged) in [
        ("(select (tollgate.consume('ten', current_setting('app.author'))).granted)", "once", 1),
        ("(tollgate.consume('ten', author)).granted", "each", 4),
    ] {
        world.sql("drop policy if exists limited on public.posts").await;
        world.sql(&format!("create policy limited on public.posts for insert with check ({condition})")).await;
        let insert = format!(
            "set app.author = '{author}'; insert into public.posts select '{author}' from generate_series(1, 4)"
        );
        run(&mut inserting, &insert).await;
        let left = format!("select tollgate.balance('ten', '{author}')::int");
        assert_eq!(one::<i32>(&mut conn, &left).await, 10 - charged, "{condition}");
    }
}

#[tokio::test]
async fn a_trigger_before_insert_charges_rows_that_a_conflict_drops() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    run(&mut conn, &format!("{TEN}; create table public.posts (author text, body text unique)")).await;
    for (author, trigger, charged) in [
        (
            "before",
            "before insert on public.posts for each row execute function tollgate.limit_rows('ten', 'author')",
            3,
        ),
        ("after", "after insert on public.posts for each row execute function tollgate.limit_rows('ten', 'author')", 1),
        (
            "together",
            "after insert on public.posts referencing new table as inserted for each statement
             execute function tollgate.limit_inserts('ten', 'author')",
            1,
        ),
    ] {
        let insert = format!(
            "truncate public.posts; insert into public.posts values ('x', 'a'), ('x', 'b');
             create trigger limited {trigger};
             insert into public.posts values ('{author}', 'a'), ('{author}', 'b'), ('{author}', 'c')
               on conflict do nothing;
             drop trigger limited on public.posts"
        );
        run(&mut conn, &insert).await;
        let left = format!("select tollgate.balance('ten', '{author}')::int");
        assert_eq!(one::<i32>(&mut conn, &left).await, 10 - charged, "{trigger}");
    }
}

#[tokio::test]
async fn a_dump_of_data_alone_fires_the_triggers_when_it_is_restored() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let trigger = "create trigger limited before insert on public.posts for each row
                   execute function tollgate.limit_rows('ten', 'author')";
    run(&mut conn, &format!("{TEN}; create table public.posts (author text); {trigger}")).await;
    run(&mut conn, "insert into public.posts values ('ada'), ('ada'), ('ada')").await;
    let dumped = |options: &[&str]| {
        let mut dump = Command::new(find_programs().unwrap().join("pg_dump"));
        let dump = dump.args(["--data-only", "--inserts", "--table=public.posts", "--dbname", &world.url_of(OWNER)]);
        let dump = dump.args(options).output().unwrap();
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        let dump = String::from_utf8(dump.stdout).unwrap();
        // Leaves out the lines that only psql understands.
        dump.lines().filter(|line| !line.starts_with('\\')).collect::<Vec<_>>().join("\n")
    };
    let (plain, silent) = (dumped(&[]), dumped(&["--disable-triggers"]));
    let aside = format!(
        "alter table public.posts disable trigger limited; {plain}; alter table public.posts enable trigger limited"
    );
    for (restore, left) in [(&plain, 4), (&silent, 4), (&aside, 4)] {
        run(&mut conn, "truncate public.posts").await;
        world.sql(restore).await;
        let told = "select tollgate.balance('ten', 'ada')::int || ' ' || (select count(*) from public.posts)";
        assert_eq!(one::<String>(&mut conn, told).await, format!("{left} 3"), "{restore}");
    }
    assert_eq!(fails(&mut conn, &format!("set search_path = public; {plain}; {plain}")).await, "PT429");
}

/// The scene of docs/compare.md: all have read the count before the first of them may write.
#[tokio::test]
async fn of_twenty_five_callers_of_a_count_that_is_read_first_all_pass() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let scene = include_str!("../../../docs/compare.md").split("```sql").nth(1).unwrap().split("```").next().unwrap();
    run(&mut conn, &format!("set search_path = public; {scene}; {TEN}")).await;
    for (ask, passing) in
        [("select check_rate_limit('ada', 10)", 25), ("select granted from tollgate.consume('ten', 'ada')", 8)]
    {
        run(&mut conn, &format!("begin; {ask}; commit; begin; {ask}")).await;
        let mut callers = JoinSet::new();
        for _ in 0..25 {
            let mut caller = owner(&world).await;
            run(&mut caller, "set search_path = public").await;
            callers.spawn(async move { one::<bool>(&mut caller, ask).await });
        }
        let waiting = "select count(*) from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        let mut admin = world.admin().await;
        soon(Box::pin(async { while one::<i64>(&mut admin, waiting).await < 25 {} })).await;
        run(&mut conn, "commit").await;
        let told = soon(callers.join_all()).await;
        assert_eq!(told.into_iter().filter(|passes| *passes).count(), passing, "{ask}");
    }
}
