//! What the limiter does, on a real server, in scenes that each print what was asked, the answer, and the balance.

mod scenes;
mod screen;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tollgate::{embedded, migrate};

use crate::args::DemoArgs;
use crate::connect::ConnectError;
use crate::error::CommandError;
use screen::Screen;

pub(crate) async fn run(args: DemoArgs) -> Result<(), CommandError> {
    let mut screen = Screen::new();
    if let Some(url) = args.database_url {
        screen.line("tollgate demo, in the database given")?;
        return play(&mut screen, &url).await;
    }
    // The launcher waits for the server without a runtime, so it gets a thread of its own. Dropped last, the server is
    // gone with the demo; a Ctrl-C ends it as well.
    let server = tokio::task::spawn_blocking(embedded::Server::start).await??;
    screen.line("tollgate demo, on a private PostgreSQL that is gone when this ends")?;
    tokio::select! {
        played = play(&mut screen, server.url()) => played,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn play(screen: &mut Screen, url: &str) -> Result<(), CommandError> {
    let pool = connected(url).await.map_err(ConnectError::Failed)?;
    let applied = migrate::run(&mut *pool.acquire().await?).await?;
    screen.line(&format!("migrated the schema tollgate: {} applied", applied.len()))?;
    set_up(&pool).await?;
    let played = scenes::play(screen, &pool).await;
    clean_up(&pool).await?;
    played
}

/// A pool whose connections are open already: the first scene is about ten calls at once.
async fn connected(url: &str) -> Result<PgPool, sqlx::Error> {
    // A pool would try again for half a minute where nobody listens.
    PgConnection::connect(url).await?.close().await?;
    let pool = PgPoolOptions::new().max_connections(12).connect(url).await?;
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(pool.acquire().await?);
    }
    Ok(pool)
}

/// The demo's own tables: what a user's service would have.
async fn set_up(pool: &PgPool) -> Result<(), CommandError> {
    let sql = "
        create schema tollgate_demo;
        create table tollgate_demo.orders (id bigint generated always as identity primary key, customer text not null);
        create table tollgate_demo.jobs (run_at timestamptz not null, prompt text not null, receipt text not null);";
    sqlx::raw_sql(sql).execute(pool).await?;
    Ok(())
}

async fn clean_up(pool: &PgPool) -> Result<(), CommandError> {
    sqlx::raw_sql("drop schema tollgate_demo cascade").execute(pool).await?;
    let names: Vec<_> = scenes::LIMITS.iter().map(|limit| limit.name().to_owned()).collect();
    for sql in
        ["delete from tollgate.buckets where name = any($1)", "delete from tollgate.rate_limits where name = any($1)"]
    {
        sqlx::query(sql).bind(&names).execute(pool).await?;
    }
    Ok(())
}
