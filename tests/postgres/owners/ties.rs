//! Code of a stranger behind what is the owner's.

use tollgate::migrate::{self, MigrateError};

use super::Stranger;

use crate::world::OWNER;

/// A role ties objects to a table that it may alter. An administrator who only gives the table to its owner leaves all
/// of it there.
#[tokio::test]
async fn code_of_a_stranger_behind_a_table_of_ours_is_refused() {
    let mut stranger = Stranger::late().await;
    stranger
        .run(
            "create function evil.always() returns bool language sql immutable as 'select true';
             create type evil.theirs as (a int)",
        )
        .await;
    let mut what = Vec::new();
    for table in ["schema_history", "durable"] {
        stranger.world.sql(&format!("alter table tollgate.{table} owner to {}", stranger.role)).await;
        for (tied, named) in TIES {
            stranger.run(&tied.replace("TABLE", table)).await;
            what.push(named.replace("TABLE", table));
        }
        stranger.world.sql(&format!("alter table tollgate.{table} owner to {OWNER}")).await;
    }
    stranger.is_told(&what).await;
}

const TIES: [(&str, &str); 9] = [
    (
        "create trigger steal before insert on tollgate.TABLE for each row execute function evil.on_write()",
        "trigger steal on tollgate.TABLE",
    ),
    ("create rule steal as on insert to tollgate.TABLE do also select evil.steal()", "rule steal on tollgate.TABLE"),
    ("create policy steal on tollgate.TABLE using (evil.steal())", "policy steal on tollgate.TABLE"),
    ("alter table tollgate.TABLE alter name set default evil.steal()", "default value for tollgate.TABLE.name"),
    (
        "alter table tollgate.TABLE add constraint steal check (evil.steal())",
        "table constraint steal on tollgate.TABLE",
    ),
    ("create index steal_TABLE on tollgate.TABLE ((evil.always()))", "index tollgate.steal_TABLE"),
    ("alter table tollgate.TABLE add a evil.theirs", "table tollgate.TABLE"),
    ("create table evil.child_TABLE () inherits (tollgate.TABLE)", "table evil.child_TABLE"),
    (
        "create statistics evil.of_TABLE on (name), (evil.always()) from tollgate.TABLE",
        "statistics object evil.of_TABLE",
    ),
];

/// A foreign key of theirs is checked with the owner's rights, by a cast of theirs.
#[tokio::test]
async fn a_foreign_key_of_a_stranger_to_a_table_of_ours_is_refused() {
    let mut stranger = Stranger::late().await;
    stranger.world.sql(&format!("grant references on tollgate.limits to {}", stranger.role)).await;
    stranger.run("create table evil.fk (a text collate \"C\" references tollgate.limits)").await;
    stranger.is_told(&["table constraint fk_a_fkey on evil.fk"]).await;
}

/// The functions and the trigger are whosever they now are, and the history is still not what refinery makes.
#[tokio::test]
async fn a_history_with_a_trigger_is_refused_whoever_owns_it() {
    let mut stranger = Stranger::late().await;
    stranger.world.sql(&format!("alter table tollgate.schema_history owner to {}", stranger.role)).await;
    stranger
        .run("create trigger steal before insert on tollgate.schema_history for each row execute function evil.on_write()")
        .await;
    stranger.world.sql(&format!("reassign owned by {} to {OWNER}", stranger.role)).await;
    stranger.is_told(&["trigger steal on tollgate.schema_history is nothing of tollgate's"]).await;
}

/// A function of an event trigger runs with each statement that makes an object.
#[tokio::test]
async fn an_event_trigger_that_runs_code_of_a_stranger_is_refused() {
    let mut stranger = Stranger::late().await;
    stranger.run("create function evil.on_ddl() returns event_trigger language plpgsql as 'begin end'").await;
    stranger.world.sql("create event trigger theirs on ddl_command_end execute function evil.on_ddl()").await;
    stranger.is_told(&["event trigger theirs"]).await;
}

/// The function of a cast between two types of ours and PostgreSQL's.
#[tokio::test]
async fn a_cast_by_a_function_of_a_stranger_is_refused() {
    let mut stranger = Stranger::late().await;
    stranger
        .run("create function evil.cast(tollgate.decision) returns text language sql as 'select evil.steal()::text'")
        .await;
    stranger.world.sql("create cast (tollgate.decision as text) with function evil.cast as assignment").await;
    stranger.is_told(&["cast (tollgate.decision AS text)"]).await;
}

impl Stranger {
    /// The owner's migrations, its checks and the distribution of its tables end, and name all of this.
    async fn is_told(&self, things: &[impl AsRef<str>]) {
        let mut conn = self.world.connect_as(OWNER).await;
        // So that there is something to write.
        let undo = "alter table tollgate.schema_history disable trigger user;
                    delete from only tollgate.schema_history where version = 6;
                    alter table tollgate.schema_history enable trigger user";
        self.world.sql(undo).await;
        for refused in [
            migrate::run(&mut conn).await.map(drop),
            migrate::validate(&mut conn).await,
            migrate::distribute(&mut conn, 8, migrate::Buckets::Colocated).await.map(drop),
        ] {
            let Err(MigrateError::Strangers { what, .. }) = refused else { panic!("{refused:?}") };
            for thing in things {
                assert!(what.iter().any(|what| what.starts_with(thing.as_ref())), "{}: {what:?}", thing.as_ref());
            }
        }
        let told = sqlx::raw_sql(sqlx::AssertSqlSafe(migrate::sql())).execute(&mut conn).await.unwrap_err();
        assert!(told.to_string().contains("--owner"), "{told}");
        assert!(!self.stole().await);
    }
}
