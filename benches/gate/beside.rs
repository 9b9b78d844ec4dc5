//! Tasks that run beside the calls of a scene.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinSet;
use tollgate::{BegunByHand, Limiter};

use crate::contender::{Servers, Session};
use crate::scene::{Scene, Workload};
use crate::support::Fault;

/// Tasks of a scene that make no calls of their own that count.
pub(crate) struct Beside {
    /// Has a transaction that holds a row.
    holder: Option<PgConnection>,
    tasks: JoinSet<Result<(), Fault>>,
    done: Arc<AtomicU32>,
}

impl Beside {
    pub(crate) async fn begin(servers: &Servers, scene: Scene, session: &Arc<Session>) -> Result<Self, Fault> {
        let mut beside = Self { holder: None, tasks: JoinSet::new(), done: Arc::default() };
        match scene.workload {
            Workload::Held => beside.hold(servers, scene, session.clone()).await?,
            Workload::Shared => beside.work(session),
            _ => {}
        }
        Ok(beside)
    }

    /// Holds a row, and lets a task ask for it in a loop.
    async fn hold(&mut self, servers: &Servers, scene: Scene, session: Arc<Session>) -> Result<(), Fault> {
        let mut conn = PgConnection::connect(servers.postgres.url()).await?;
        sqlx::raw_sql("begin").execute(&mut conn).await?;
        // Holds it to the end of the transaction.
        Limiter::new().consume(&mut BegunByHand(&mut conn), scene.held()).await?.granted()?;
        self.holder = Some(conn);
        self.tasks.spawn(async move {
            loop {
                match session.ask(scene.held()).await {
                    Ok(_) => return Err("granted what somebody holds".into()),
                    Err(tollgate::Error::Locked { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        });
        Ok(())
    }

    /// Lets as many tasks as the pool has connections do what services do, over that pool.
    fn work(&mut self, session: &Session) {
        for _ in 0..TASKS {
            let (pool, done) = (session.pool().clone(), self.done.clone());
            self.tasks.spawn(async move {
                loop {
                    work(&pool).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }

    /// How often the tasks have done their work until now.
    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(mut self) -> Result<(), Fault> {
        if let Some(failed) = self.tasks.try_join_next() {
            failed??;
        }
        self.tasks.shutdown().await;
        if let Some(holder) = self.holder {
            holder.close().await?;
        }
        Ok(())
    }
}

/// Makes the rows of the other work.
pub(crate) async fn prepare(pool: &PgPool) -> Result<(), Fault> {
    let rows = "create table accounts (id int primary key, owner int not null, money bigint not null);
                insert into accounts select n, n / 50, 0 from generate_series(0, 9999) n;
                create index on accounts (owner);
                vacuum analyze accounts";
    for statement in rows.split(';') {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(pool).await?;
    }
    Ok(())
}

/// Reads the rows of an owner, and changes one of them, in a transaction.
async fn work(pool: &PgPool) -> Result<(), Fault> {
    let owner = fastrand::i32(0..200);
    let mut tx = pool.begin().await?;
    let read = "select id from accounts where owner = $1 order by money limit 1";
    let id: i32 = sqlx::query_scalar(read).bind(owner).fetch_one(&mut *tx).await?;
    let change = "update accounts set money = money + 1 where id = $1";
    sqlx::query(change).bind(id).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

const TASKS: usize = 16;
