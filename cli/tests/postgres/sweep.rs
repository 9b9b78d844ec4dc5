//! `tollgate sweep`, as people run it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate::{HOUR, Limit, Limiter, MINUTE};

use crate::command::{failure, run, signal, stdout, text, tollgate};
use crate::world::{NUMBERS, PARTS, World, soon};

/// So many rows that have been full for an hour.
async fn fill(world: &World, rows: u32) {
    world
        .sql(&format!(
            "insert into tollgate.durable
             select 0, 'full', n, 0, 0, now() - interval '2 hours', now() - interval '1 hour'
               from generate_series(1, {rows}) n"
        ))
        .await;
}

fn sweep(world: &World, args: &[&str]) -> Command {
    let mut command = tollgate();
    command.arg("sweep").args(args).env("DATABASE_URL", world.command_url()).env_remove("TOLLGATE_LIMITS");
    command
}

async fn until_fewer_than(world: &World, rows: i64) {
    soon(async { while world.rows().await >= rows {} }).await;
}

#[tokio::test]
async fn it_tells_how_many_rows_it_deleted_and_a_dry_run_how_many_it_would() {
    let world = World::new().await;
    fill(&world, 1000).await;
    world.sql("insert into tollgate.ephemeral values (0, 'recent', 'k', 0, 0, now(), now())").await;
    let counted = stdout(&run(&mut sweep(&world, &["--dry-run"])));
    assert!(counted.starts_with("would delete 1000 durable and 0 ephemeral rows; looked at "), "{counted}");
    assert_eq!(counted.lines().count(), 1, "{counted}");
    assert_eq!(world.rows().await, 1001);

    let json = stdout(&run(&mut sweep(&world, &["--json", "--batch", "300", "--share", "100"])));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["durable"], &report["ephemeral"], &report["batches"]), (&1000.into(), &0.into(), &4.into()));
    assert_eq!(
        (&report["complete"], &report["dry_run"], &report["yielded"]),
        (&true.into(), &false.into(), &false.into())
    );
    let swept = stdout(&run(&mut sweep(&world, &["--margin", "0s"])));
    assert!(swept.starts_with("deleted 0 durable and 1 ephemeral rows; looked at "), "{swept}");
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn an_interrupt_ends_it_after_the_batch_at_hand_and_it_says_what_is_done() {
    let world = World::new().await;
    fill(&world, 20_000).await;
    let mut command = sweep(&world, &["--json", "--batch", "10", "--share", "1"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until_fewer_than(&world, 20_000).await;
    signal("INT", child.id());
    let status = child.wait().unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.unwrap().read_to_string(&mut out).unwrap();
    child.stderr.unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(status.code(), Some(0), "{err}");
    assert_eq!(err, "ending after the current batch; a second signal ends it at once\n");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let left = world.rows().await;
    assert!(left > 0);
    assert_eq!((report["durable"].as_i64(), report["complete"].as_bool()), (Some(20_000 - left), Some(false)));
}

#[tokio::test]
async fn where_the_clocks_differ_by_more_than_a_minute_it_wants_to_be_forced() {
    let world = World::with_clock().await;
    fill(&world, 3).await;
    for ahead in ["2 hours", "-30 minutes"] {
        world.set_ahead(ahead).await;
        let error = failure(&run(&mut sweep(&world, &["--margin", "0s"])));
        assert!(error.starts_with("error: the clocks of the database and of this machine differ by"), "{error}");
        assert!(error.contains("--force"), "{error}");
        assert_eq!((error.lines().count(), world.rows().await), (1, 3), "{error}");
    }
    assert!(stdout(&run(&mut sweep(&world, &["--force"]))).starts_with("deleted 3 durable"));
    for ahead in ["30 seconds", "-30 seconds"] {
        world.set_ahead(ahead).await;
        assert!(stdout(&run(&mut sweep(&world, &[]))).starts_with("deleted 0 durable"));
    }
}

/// From cron each one is a new process, which knows nothing of those before it.
#[tokio::test]
async fn where_somebody_keeps_the_lock_of_the_sweepers_it_fails_and_says_how_to_find_them() {
    let world = World::new().await;
    fill(&world, 3).await;
    let mut keeper = world.pool.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(7234017283807667300)").execute(&mut *keeper).await.unwrap();
    let output = run(&mut sweep(&world, &[]));
    assert!(
        text(&output.stdout).starts_with("deleted 0 durable and 0 ephemeral rows; looked at 0 pages"),
        "{output:?}"
    );
    let error = failure(&output);
    assert!(error.starts_with("error: another session keeps the lock of the sweepers (find it with: "), "{error}");

    // As a sidecar it outlasts them.
    let mut command = sweep(&world, &["--every", "1s"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert_eq!(told, error);
    keeper.rollback().await.unwrap();
    until_fewer_than(&world, 1).await;
    signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn it_gives_back_what_lapsed_and_forgets_ids() {
    const QUOTA: Limit = Limit::token_bucket("quota", 10, HOUR);
    for parts in [0, PARTS] {
        let world = World::of_parts(parts).await;
        let (limiter, moment) = (Limiter::new().parts(parts), Duration::from_millis(1));
        for n in 0..5 {
            let request = QUOTA.key(n).cost(10);
            let request = if n < 2 { request.lapses_after(moment) } else { request.once_for(n, moment) };
            let mut tx = world.begin().await;
            limiter.consume(&mut tx, request).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
        }
        let left = async || {
            let sql = "select count(*) from tollgate.calls";
            sqlx::query_scalar::<_, i64>(sql).fetch_one(&world.pool).await.unwrap()
        };
        let counted = stdout(&run(&mut sweep(&world, &["--dry-run", "--margin", "0s"])));
        assert!(!counted.contains("call") && left().await == 5, "{counted}");
        let swept = stdout(&run(&mut sweep(&world, &["--batch", "2", "--share", "100", "--margin", "0s"])));
        assert!(swept.contains("; gave 2 calls back that had lapsed; forgot 3 calls; "), "{swept}");
        assert_eq!(left().await, 0);
        for (n, back) in [(1, true), (2, false)] {
            let mut conn = world.pool.acquire().await.unwrap();
            let balance = limiter.balance(&mut conn, QUOTA.key(n)).await.unwrap();
            assert_eq!(balance.is_full(), back, "{balance:?}");
        }
    }
}

/// It sweeps by the definitions that wrote the rows, part by part.
#[tokio::test]
async fn on_citus_it_deletes_what_the_rows_say() {
    let world = World::of_parts(PARTS).await;
    for part in NUMBERS {
        world
            .sql(&format!(
                "insert into tollgate.durable
                 select {part}, 'full', n, 0, 0, now() - interval '2 hours', now() - interval '1 hour'
                   from generate_series(1, 5) n;
                 insert into tollgate.ephemeral values ({part}, 'recent', 'k', 0, 0, now(), now())"
            ))
            .await;
    }
    let counted = stdout(&run(&mut sweep(&world, &["--dry-run"])));
    assert!(counted.starts_with("would delete 40 durable and 0 ephemeral rows"), "{counted}");
    let mut tx = world.begin().await;
    sqlx::query("select from tollgate.durable where key = '5' for update").execute(&mut *tx).await.unwrap();
    let swept = stdout(&run(&mut sweep(&world, &["--batch", "2", "--share", "100"])));
    assert!(swept.starts_with("deleted 32 durable and 0 ephemeral rows"), "{swept}");
    tx.rollback().await.unwrap();
    let json = stdout(&run(&mut sweep(&world, &["--json", "--margin", "0s"])));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["durable"], &report["ephemeral"], &report["complete"]), (&8.into(), &8.into(), &true.into()));
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn as_a_sidecar_it_sweeps_again_and_again_until_it_is_terminated() {
    let world = World::new().await;
    fill(&world, 10).await;
    let mut command = sweep(&world, &["--every", "1s"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until_fewer_than(&world, 1).await;
    fill(&world, 7).await;
    until_fewer_than(&world, 1).await;
    signal("TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut out = String::new();
    child.stdout.unwrap().read_to_string(&mut out).unwrap();
    let deleted = |rows: &str| out.lines().any(|line| line.starts_with(&format!("deleted {rows} durable")));
    assert!(deleted("10") && deleted("7"), "{out}");
}

#[tokio::test]
async fn a_second_interrupt_ends_it_though_the_table_is_locked() {
    let world = World::new().await;
    let mut tx = world.pool.begin().await.unwrap();
    sqlx::query("lock table tollgate.ephemeral in access exclusive mode").execute(&mut *tx).await.unwrap();
    let mut child = sweep(&world, &[]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let waits = "select exists (select from pg_stat_activity
                                 where datname = current_database() and application_name = 'tollgate'
                                 and wait_event_type = 'Lock')";
    let mut admin = world.admin().await;
    soon(async { while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut admin).await.unwrap() {} }).await;
    signal("INT", child.id());
    let mut told = [0; 6];
    child.stderr.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"ending");
    signal("INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[tokio::test]
async fn what_is_wrong_is_one_sentence() {
    let world = World::unmigrated().await;
    let error = failure(&run(&mut sweep(&world, &[])));
    assert!(
        error.starts_with("error: the tollgate schema is missing or too old (run `tollgate migrate up`)"),
        "{error}"
    );
    let error = failure(&run(sweep(&world, &[]).env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")));
    assert!(error.starts_with("error: could not connect to the database: ") && error.lines().count() == 1, "{error}");
    for wrong in [&["--every", "1ms"][..], &["--batch", "0"], &["--share", "101"], &["--margin", "soon"]] {
        assert_eq!(run(&mut sweep(&world, wrong)).status.code(), Some(64), "{wrong:?}");
    }
}

/// The error of a server that is restarted is no reason to end a sidecar.
#[tokio::test]
async fn as_a_sidecar_it_outlasts_a_lost_connection() {
    let world = World::new().await;
    let mut command = sweep(&world, &["--every", "1s"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..3 {
        fill(&world, 5).await;
        until_fewer_than(&world, 1).await;
        let end = "select pg_terminate_backend(pid) from pg_stat_activity
                   where application_name = 'tollgate' and datname = current_database()";
        world.sql(end).await;
    }
    assert!(child.try_wait().unwrap().is_none());
    signal("TERM", child.id());
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap().code());
    assert_eq!(tokio::time::timeout(5 * MINUTE, ended).await.unwrap().unwrap(), Some(0));
}
