//! Calls that are dropped on the way: nothing is taken by halves, and the connection is as good as new.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::gate::stage::one_connection;
use sqlx::{Connection, PgPool, PgTransaction};
use tollgate::{Error, Grant, HOUR, Limit, Limiter, Reservation};

use crate::proxy::Proxy;
use crate::world::{World, pid};

const LIMITER: Limiter = Limiter::new();

const EVER: Duration = Limit::MAX_PERIOD;
const DURABLE: Limit = Limit::token_bucket("durable", 10, EVER).max_reserved(20);
const EPHEMERAL: Limit = Limit::token_bucket("ephemeral", 10, EVER).ephemeral();

/// The calls that are dropped, each at every point where it waits.
#[derive(Clone, Copy, Debug)]
enum Verb {
    ConsumeAbsent,
    ConsumeExisting,
    ConsumeAll,
    Credit,
    Debit,
    Reserve,
    Reset,
    Settle,
    Cancel,
}

const VERBS: [Verb; 9] = [
    Verb::ConsumeAbsent,
    Verb::ConsumeExisting,
    Verb::ConsumeAll,
    Verb::Credit,
    Verb::Debit,
    Verb::Reserve,
    Verb::Reset,
    Verb::Settle,
    Verb::Cancel,
];

#[tokio::test]
async fn a_call_dropped_anywhere_and_rolled_back_leaves_no_trace() {
    let stage = Stage::new().await;
    for limiter in [LIMITER, LIMITER.lock_timeout(Duration::from_secs(10))] {
        for verb in VERBS {
            let mut cuts = Cuts::default();
            loop {
                let props = stage.set().await;
                let before = stage.balances().await;
                let mut tx = stage.pool.begin().await.unwrap();
                let done = Cut::after(cuts.waits, verb.call(&limiter, &mut tx, props)).await;
                drop(tx);
                assert_eq!(stage.balances().await, before, "{verb:?}, cut at {}", cuts.waits);
                assert_eq!(stage.rows().await, 3, "{verb:?}, cut at {}", cuts.waits);
                stage.the_connection_is_as_new().await;
                if !cuts.go_on(done.is_some()) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_call_dropped_anywhere_and_committed_counts_whole_or_not_at_all() {
    let stage = Stage::new().await;
    for limiter in [LIMITER, LIMITER.lock_timeout(Duration::from_secs(10))] {
        for verb in VERBS {
            let props = stage.set().await;
            let without = stage.balances().await;
            let mut tx = stage.pool.begin().await.unwrap();
            verb.call(&limiter, &mut tx, props).await;
            tx.commit().await.unwrap();
            let with = stage.balances().await;
            assert_ne!(with, without, "{verb:?}");

            let mut cuts = Cuts::default();
            loop {
                let props = stage.set().await;
                let mut tx = stage.pool.begin().await.unwrap();
                let done = Cut::after(cuts.waits, verb.call(&limiter, &mut tx, props)).await;
                tx.commit().await.unwrap();
                let found = stage.balances().await;
                assert!(found == with || found == without, "{verb:?}, cut at {}: {found:?}", cuts.waits);
                stage.the_connection_is_as_new().await;
                if done.is_some() {
                    assert_eq!(found, with, "{verb:?}");
                }
                if !cuts.go_on(done.is_some()) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_call_dropped_while_it_waits_for_a_lock_takes_nothing() {
    let stage = Stage::new().await;
    stage.set().await;
    let before = stage.balances().await;
    for limiter in [LIMITER, LIMITER.lock_timeout(HOUR)] {
        let mut holder = stage.world.connect().await;
        let mut held = holder.begin().await.unwrap();
        sqlx::query("select from tollgate.durable for update").execute(&mut *held).await.unwrap();
        let mut tx = stage.pool.begin().await.unwrap();
        let waiter = pid(&mut tx).await;
        tokio::select! {
            decision = limiter.consume(&mut tx, DURABLE.key("there")) => panic!("{decision:?} through a lock"),
            () = stage.world.until_blocked(waiter) => {}
        }
        drop(tx);
        held.rollback().await.unwrap();
        stage.the_connection_is_as_new().await;
        assert_eq!(stage.balances().await, before);
    }
}

/// The limiter's lock timeout is for its own wait: neither a refusal nor a wait that is cut short leaves it behind.
#[tokio::test]
async fn a_lock_timeout_leaves_the_transaction_usable_and_its_own_timeout_in_place() {
    let stage = Stage::new().await;
    stage.set().await;
    let mut holder = stage.world.connect().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("select from tollgate.durable for update").execute(&mut *held).await.unwrap();
    let mut tx = stage.pool.begin().await.unwrap();
    sqlx::query("set local lock_timeout = '7s'").execute(&mut *tx).await.unwrap();
    let busy = LIMITER.lock_timeout(Duration::from_millis(1)).consume(&mut tx, DURABLE.key("there")).await;
    assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
    let timeout: String = sqlx::query_scalar("show lock_timeout").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(timeout, "7s");
    LIMITER.consume(&mut tx, DURABLE.key("elsewhere")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    held.rollback().await.unwrap();
    assert_eq!(stage.rows().await, 4);
    stage.the_connection_is_as_new().await;
}

/// A database, and a pool of one connection: if a call spoils it, the next user notices.
struct Stage {
    /// Between pool and server, in the test's own thread: so every statement has to be waited for.
    _proxy: Proxy,
    pool: PgPool,
    world: World,
}

/// A grant and a reservation that were taken before, to be settled or cancelled.
struct Props {
    grant: Grant,
    reservation: Reservation,
}

impl Stage {
    async fn new() -> Self {
        let world = World::new().await;
        world.sql("create table seen (n int)").await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        Self { _proxy: proxy, pool, world }
    }

    /// Sets the tables to the same balances as always.
    async fn set(&self) -> Props {
        self.world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
        let mut tx = self.world.pool.begin().await.unwrap();
        let ask = [DURABLE.key("there").cost(3), EPHEMERAL.key("there").cost(3)];
        let grant = LIMITER.consume(&mut tx, ask).await.unwrap().granted().unwrap();
        let ask = DURABLE.key("owing").cost(15);
        let reservation = LIMITER.reserve(&mut tx, ask).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        Props { grant, reservation }
    }

    /// The rows that are not full, in micro-tokens: an absent row is a full one.
    async fn balances(&self) -> Vec<(String, String, i64)> {
        let sql = "select name, key, value from tollgate.ephemeral where value < 0
                   union all select name, key, value from tollgate.durable where value < 0 order by 1, 2";
        sqlx::query_as(sql).fetch_all(&self.world.pool).await.unwrap()
    }

    async fn rows(&self) -> i64 {
        self.world.rows().await
    }

    /// The work of the pool's next user counts at once, for everybody, under the server's own settings.
    async fn the_connection_is_as_new(&self) {
        let mut conn = self.pool.acquire().await.unwrap();
        let sql = "select txid_current_if_assigned() is null and current_setting('lock_timeout') = '0'";
        assert!(sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut *conn).await.unwrap());
        let count = |what| sqlx::query_scalar::<_, i64>(what);
        let before = count("select count(*) from seen").fetch_one(&self.world.pool).await.unwrap();
        sqlx::query("insert into seen values (1)").execute(&mut *conn).await.unwrap();
        let after = count("select count(*) from seen").fetch_one(&self.world.pool).await.unwrap();
        assert_eq!(after, before + 1, "the connection was in a transaction");
    }
}

impl Verb {
    async fn call(self, limiter: &Limiter, tx: &mut PgTransaction<'_>, props: Props) {
        match self {
            Self::ConsumeAbsent => assert!(limiter.consume(tx, DURABLE.key("new")).await.unwrap().is_granted()),
            Self::ConsumeExisting => {
                assert!(limiter.consume(tx, EPHEMERAL.key("there").cost(2)).await.unwrap().is_granted());
            }
            Self::ConsumeAll => {
                let ask = ["there", "new"].map(|key| [DURABLE.key(key), EPHEMERAL.key(key)]).into_iter().flatten();
                assert!(limiter.consume(tx, ask).await.unwrap().is_granted());
            }
            Self::Credit => drop(limiter.credit(tx, DURABLE.key("there")).await.unwrap()),
            Self::Debit => drop(limiter.debit(tx, DURABLE.key("new").cost(12)).await.unwrap()),
            Self::Reserve => {
                assert!(limiter.reserve(tx, DURABLE.key("there").cost(12)).await.unwrap().is_granted());
            }
            Self::Reset => drop(limiter.reset(tx, DURABLE.key("owing")).await.unwrap()),
            Self::Settle => drop(limiter.settle(tx, props.grant, 1).await.unwrap()),
            Self::Cancel => drop(limiter.cancel(tx, props.reservation).await.unwrap()),
        }
    }
}

/// Where a call is dropped next: at its first wait, then at its second, until it is done before.
#[derive(Default)]
pub(crate) struct Cuts {
    pub(crate) waits: usize,
    quick: u32,
}

impl Cuts {
    /// Whether to call once more, after a call that was done or was dropped.
    pub(crate) fn go_on(&mut self, is_done: bool) -> bool {
        if !is_done {
            self.waits += 1;
            return true;
        }
        // Beside a busy server an answer may be there before the call looks for it.
        self.quick += 1;
        assert!(self.waits >= 2 || self.quick < 1_000, "it waited {} times", self.waits);
        self.waits < 2
    }
}

/// A future that is dropped where it waits for the n-th time, counted from 0.
pub(crate) struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    waits: usize,
}

impl<F: Future> Cut<F> {
    pub(crate) fn after(waits: usize, future: F) -> Self {
        Self { future: Some(Box::pin(future)), waits }
    }
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if let Poll::Ready(done) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if self.waits == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.waits -= 1;
        Poll::Pending
    }
}
