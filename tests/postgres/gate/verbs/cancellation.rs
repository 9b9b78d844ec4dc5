//! Calls that are dropped on the way: each counts whole or not at all, and the gate goes on.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use sqlx::PgPool;
use tollgate::{Gate, Grant, Limit, Limiter, MINUTE, Reservation};

use crate::gate::stage::{EVER, idle_in_transaction, one_connection, patient, soon};
use crate::proxy::Proxy;
use crate::world::World;

const DURABLE: Limit = Limit::stepped_bucket("durable", 10, EVER).max_reserved(20);
const EPHEMERAL: Limit = Limit::stepped_bucket("ephemeral", 10, EVER).ephemeral();

/// The calls that are dropped.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Consume,
    ConsumeNew,
    ConsumeAll,
    Wait,
    Check,
    Balance,
    Credit,
    Debit,
    Reserve,
    Reset,
    Settle,
    Cancel,
}

const VERBS: [Verb; 12] = [
    Verb::Consume,
    Verb::ConsumeNew,
    Verb::ConsumeAll,
    Verb::Wait,
    Verb::Check,
    Verb::Balance,
    Verb::Credit,
    Verb::Debit,
    Verb::Reserve,
    Verb::Reset,
    Verb::Settle,
    Verb::Cancel,
];

/// Dropped while the gate waits for a connection, and before each statement of the call: from the first statement on it
/// counts.
#[tokio::test]
async fn a_call_dropped_at_any_statement_counts_whole_or_not_at_all() {
    let stage = Stage::new().await;
    for verb in VERBS {
        let [without, with] = stage.ends(verb).await;
        for passed in 0.. {
            let props = stage.set().await;
            let mut call = pin!(verb.call(&stage.gate, props));
            stage.proxy.hold_after(passed);
            let done = tokio::select! {
                () = &mut call => true,
                () = stage.proxy.until_held() => false,
            };
            // Dropped here, if it is not done.
            call.set(verb.call(&stage.gate, Props::default()));
            stage.proxy.release();
            let found = stage.settled().await;
            let expected = if passed == 0 { &without } else { &with };
            assert_eq!(&found, expected, "{verb:?}, dropped before statement {passed}");
            if done {
                assert!(passed >= 1, "{verb:?}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_call_dropped_after_any_number_of_polls_counts_whole_or_not_at_all() {
    let stage = Stage::new().await;
    for verb in VERBS {
        let [without, with] = stage.ends(verb).await;
        // Each poll is a moment more; a call takes some hundred of them.
        for polls in std::iter::successors(Some(0), |polls| Some(polls + 1 + polls / 2)) {
            let props = stage.set().await;
            let done = Cut::after(polls, verb.call(&stage.gate, props)).await;
            let found = stage.settled().await;
            assert!(found == with || found == without, "{verb:?} dropped after {polls} polls: {found:?}");
            if done.is_some() {
                assert_eq!(found, with, "{verb:?}");
                break;
            }
        }
    }
}

/// Nothing was decided when it was made, and nothing will be.
#[tokio::test]
async fn a_call_that_is_never_polled_takes_nothing() {
    let stage = Stage::new().await;
    for verb in VERBS {
        let [without, _] = stage.ends(verb).await;
        let props = stage.set().await;
        drop(verb.call(&stage.gate, props));
        assert_eq!(stage.settled().await, without, "{verb:?}");
    }
}

/// A gate over a pool of one connection: if a call spoils it, the next user notices.
struct Stage {
    proxy: Proxy,
    gate: Gate,
    pool: PgPool,
    world: World,
}

/// A grant and a reservation that were taken before, to be settled or cancelled.
#[derive(Default)]
struct Props {
    taken: Option<(Grant, Reservation)>,
}

/// All that can change; a full row says as much as an absent one.
type State = Vec<(String, String, i64)>;

impl Stage {
    async fn new() -> Self {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let pool = one_connection(proxy.options()).await;
        Self { proxy, gate: patient(&pool).build(), pool, world }
    }

    /// Sets the tables to the same balances as always.
    async fn set(&self) -> Props {
        self.world.sql("truncate tollgate.ephemeral, tollgate.durable").await;
        let mut tx = self.world.pool.begin().await.unwrap();
        let limiter = Limiter::new();
        let ask = [DURABLE.key("there").cost(3), EPHEMERAL.key("there").cost(3)];
        let grant = limiter.consume(&mut tx, ask).await.unwrap().granted().unwrap();
        let booked = limiter.reserve(&mut tx, DURABLE.key("owing").cost(15)).await.unwrap().granted().unwrap();
        tx.commit().await.unwrap();
        Props { taken: Some((grant, booked)) }
    }

    async fn state(&self) -> State {
        let sql = "select name, key, value from tollgate.ephemeral where value < 0
                   union all select name, key, value from tollgate.durable where value < 0 order by 1, 2";
        sqlx::query_as(sql).fetch_all(&self.world.pool).await.unwrap()
    }

    /// The state once the gate has finished its calls; it and its pool are as good as before.
    async fn settled(&self) -> State {
        soon(self.gate.consume(EPHEMERAL.key("fence"))).await.unwrap().granted().unwrap();
        assert_eq!(idle_in_transaction(&self.world.pool).await, 0);
        let mut conn = soon(self.pool.acquire()).await.unwrap();
        let sql = "select txid_current_if_assigned() is null and current_setting('lock_timeout') = '0'
                      and current_setting('statement_timeout') = '0'";
        assert!(sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut *conn).await.unwrap());
        let mut state = self.state().await;
        state.retain(|(_, key, _)| key != "fence");
        state
    }

    /// The states before and after a call.
    async fn ends(&self, verb: Verb) -> [State; 2] {
        let props = self.set().await;
        let without = self.state().await;
        verb.call(&self.gate, props).await;
        let with = self.state().await;
        assert_eq!(with == without, matches!(verb, Verb::Check | Verb::Balance), "{verb:?}");
        [without, with]
    }
}

impl Verb {
    async fn call(self, gate: &Gate, props: Props) {
        let Some((grant, booked)) = props.taken else { return };
        match self {
            Self::Consume => assert!(gate.consume(EPHEMERAL.key("there").cost(2)).await.unwrap().is_granted()),
            Self::ConsumeNew => assert!(gate.consume(DURABLE.key("new")).await.unwrap().is_granted()),
            Self::ConsumeAll => {
                let ask = ["there", "new"].map(|key| [DURABLE.key(key), EPHEMERAL.key(key)]).into_iter().flatten();
                assert!(gate.consume(ask).await.unwrap().is_granted());
            }
            Self::Wait => assert!(gate.wait(DURABLE.key("there"), MINUTE).await.unwrap().is_granted()),
            Self::Check => assert!(gate.check(DURABLE.key("there")).await.unwrap().is_granted()),
            Self::Balance => drop(gate.balance(DURABLE.key("there")).await.unwrap()),
            Self::Credit => drop(gate.credit(DURABLE.key("there")).await.unwrap()),
            Self::Debit => drop(gate.debit(DURABLE.key("new").cost(12)).await.unwrap()),
            Self::Reserve => {
                assert!(gate.reserve(DURABLE.key("there").cost(12)).await.unwrap().is_granted());
            }
            Self::Reset => drop(gate.reset(DURABLE.key("owing")).await.unwrap()),
            Self::Settle => drop(gate.settle(grant, 1).await.unwrap()),
            Self::Cancel => drop(gate.cancel(booked).await.unwrap()),
        }
    }
}

/// A future that is dropped after so many polls.
struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

impl<F: Future> Cut<F> {
    fn after(polls: usize, future: F) -> Self {
        Self { future: Some(Box::pin(future)), polls }
    }
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            self.future = None;
        }
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if let Poll::Ready(done) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        self.polls -= 1;
        // A call waits for one answer only: between two of these polls its lane gets on.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
