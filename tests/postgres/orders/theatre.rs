//! Plays each order of each scene.

#![expect(clippy::disallowed_methods, reason = "says how long it took")]

use std::sync::Arc;
use std::time::Instant;
use std::{iter, slice};

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Notify;
use tollgate::{Gate, Receipt, migrate};
use tollgate_embedded::Server;

use super::cast::{self, Cast, Role, Start};
use super::outcome::Outcome;
use super::rows::Rows;
use super::scene::Scene;
use super::schedule::{Fault, Schedule, Stage};
use super::verb::{Ending, Verb};
use crate::functions::define;
use crate::world::{OWNER, SERVICE, World, is_distributed, one_connection, patient, soon};

/// The part of the product that carries out the verb of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hand {
    Limiter,
    Gate,
    Sql,
}

/// Which orders to play.
pub(crate) enum Orders<'a> {
    All,
    /// So many.
    Drawn(usize, &'a mut Rng),
}

/// A database, and one connection for each session.
pub(crate) struct Theatre {
    stage: Stage,
    actors: Vec<Actor>,
    /// Prepares the rows, and reads them at the end.
    conn: PgConnection,
    /// An instant before all schedules.
    before: DateTime<Utc>,
    /// Of each schedule, at most.
    switches: usize,
    /// Of so many scenes one is played in all its orders.
    of_scenes: u64,
    scenes: u64,
    /// Schedules, or cuts.
    runs: u64,
    keys: u64,
    began: Instant,
    _world: Option<World>,
}

struct Actor {
    hand: Hand,
    pool: PgPool,
    gate: Gate,
}

impl Theatre {
    pub(crate) async fn open(hands: impl IntoIterator<Item = Hand>) -> Self {
        let world = World::new().await;
        let mut owner = world.connect_as(OWNER).await;
        for limit in cast::IN_SQL {
            define(&mut owner, limit).await;
        }
        let hands: Vec<_> = hands.into_iter().collect();
        let url = |hand: &Hand| world.url_of(if *hand == Hand::Sql { OWNER } else { SERVICE });
        let stage = Stage::new(hands.iter().map(url), world.admin().await);
        let conn = world.connect().await;
        Self { _world: Some(world), ..Self::with(hands, stage, conn).await }
    }

    /// One on a server of its own, which may crash.
    async fn on(server: &Server, hands: Vec<Hand>) -> Self {
        let [control, conn] = [connect(server).await, connect(server).await];
        let urls = vec![server.url().to_owned(); hands.len()];
        Self::with(hands, Stage::new(urls.into_iter(), control), conn).await
    }

    async fn with(hands: Vec<Hand>, stage: Stage, mut conn: PgConnection) -> Self {
        let mut actors = Vec::new();
        for (hand, line) in hands.into_iter().zip(&stage.lines) {
            let pool = one_connection(line.options()).await;
            actors.push(Actor { hand, gate: patient(&pool).build(), pool });
        }
        let before = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut conn).await.unwrap();
        let switches = match std::env::var("TOLLGATE_TEST_SWITCHES").as_deref() {
            Ok("all") => usize::MAX,
            Ok(switches) => switches.parse().unwrap(),
            Err(_) => 1,
        };
        let of_scenes = std::env::var("TOLLGATE_TEST_SCENES").map_or(1, |scenes| scenes.parse().unwrap());
        let (scenes, runs, keys, began) = (0, 0, 0, Instant::now());
        Self { stage, actors, conn, before, switches, of_scenes, scenes, runs, keys, began, _world: None }
    }

    /// Each pair of a cast, and each role beside itself.
    pub(crate) async fn play_pairs(&mut self, cast: &Cast) {
        for (place, first) in cast.roles.iter().enumerate() {
            self.play_beside(cast, first, &cast.roles[place..]).await;
        }
    }

    /// A role beside each of some.
    pub(crate) async fn play_beside(&mut self, cast: &Cast, first: &Role, others: &[Role]) {
        for second in others {
            for start in cast.starts {
                self.play(cast, &[*first, *second], *start, Orders::All).await;
            }
        }
    }

    /// One order of roles that are all drawn.
    pub(crate) async fn play_any(&mut self, dice: &mut Rng) {
        let is_in_sql = self.actors.iter().any(|actor| actor.hand == Hand::Sql);
        let casts = if is_in_sql { &[&cast::OF_ONE_ROW, &cast::OF_TWO_ROWS][..] } else { &cast::ALL };
        let cast = dice.choice(casts).unwrap();
        let roles: Vec<Role> = self.actors.iter().map(|actor| actor.hand.any(cast, dice)).collect();
        let start = *dice.choice(cast.starts).unwrap();
        self.play(cast, &roles, start, Orders::Drawn(1, dice)).await;
    }

    /// Some orders of some roles.
    pub(crate) async fn play(&mut self, cast: &Cast, roles: &[Role], start: Start, orders: Orders<'_>) {
        let names: Vec<_> = roles.iter().map(|role| role.name).collect();
        let title = format!("{} | {start:?}", names.join(" | "));
        let only = std::env::var("TOLLGATE_ORDER").ok();
        let wanted = only.as_ref().map(|only| only.rsplit_once(" | ").unwrap());
        let can_all = self.actors.iter().zip(roles).all(|(actor, role)| actor.hand.can(role));
        if !can_all || wanted.is_some_and(|(wanted, _)| wanted != title) {
            return;
        }
        self.scenes += 1;
        if let Some((_, schedule)) = wanted {
            self.play_once(cast, roles, start, &mut Schedule::parse(schedule), &title).await;
        } else if let Orders::Drawn(many, dice) = orders {
            for _ in 0..many {
                let mut schedule = Schedule::drawn(roles.len(), dice);
                self.play_once(cast, roles, start, &mut schedule, &title).await;
            }
        } else if self.scenes.is_multiple_of(self.of_scenes) {
            let mut next = Some(Schedule::first(self.switches));
            while let Some(mut schedule) = next {
                self.play_once(cast, roles, start, &mut schedule, &title).await;
                next = schedule.next();
            }
        }
    }

    async fn play_once(&mut self, cast: &Cast, roles: &[Role], start: Start, schedule: &mut Schedule, title: &str) {
        let scene = self.scene(cast, roles, start).await;
        let acts = self.actors.iter().zip(&scene.told).map(|(actor, verb)| actor.act(verb.clone())).collect();
        let told = self.stage.run(acts, schedule).await;
        self.runs += 1;
        if let Err(serial) = scene.judge(&mut self.conn, cast, told).await {
            panic!("TOLLGATE_ORDER='{title} | {schedule}'\n{serial}");
        }
    }

    /// Every cut of each role, from its first message to its last. A role with an id repeats its call.
    pub(crate) async fn cut_each(&mut self, cast: &Cast) {
        for role in cast.roles {
            for fault in [Fault::Gone, Fault::Ended, Fault::Lost] {
                if self.actors[0].hand.can(role) {
                    self.scenes += 1;
                    let mut messages = 1..;
                    while self.cut(cast, role, fault, messages.next().unwrap()).await {}
                }
            }
        }
    }

    /// Whether the role has a message of this number, to cut it at.
    async fn cut(&mut self, cast: &Cast, role: &Role, fault: Fault, message: usize) -> bool {
        let scene = self.scene(cast, slice::from_ref(role), cast.starts[0]).await;
        let act = || self.actors[0].act(scene.told[0].clone());
        let Some(mut told) = self.stage.strike(act(), message, fault).await else { return false };
        if role.has_id {
            told = Some(act().await);
        }
        self.runs += 1;
        if let Err(says) = scene.judge_cut(&mut self.conn, told, false).await {
            panic!("{} with {fault:?} at message {message}\n{says}", role.name);
        }
        true
    }

    /// Drops the call of each role at each of its messages, while the connection lives.
    pub(crate) async fn drop_each(&mut self, cast: &Cast, ending: Ending) {
        let hand = self.actors[0].hand;
        // A gate's call that waits is one that consumes.
        let is_made = |role: &&Role| match (role.verb)("", Receipt::default()) {
            Verb::Reap | Verb::Sweep(_) | Verb::Vain(_) => false,
            Verb::Consume(_) => hand.can(role),
            _ => hand.can(role) && (hand == Hand::Limiter || ending.timeout.is_none()),
        };
        for role in cast.roles.iter().filter(is_made) {
            for start in cast.starts {
                self.scenes += 1;
                // A limiter's call begins behind the trial of the connection and the begin of the transaction.
                let mut messages = if hand == Hand::Gate { 0.. } else { 2.. };
                while self.drop_at(cast, role, *start, ending, messages.next().unwrap()).await {}
            }
        }
    }

    /// Whether the role has a message of this number, to drop it there. A gate's call counts from its first statement
    /// on; before it the pool tries the connection, and where tables have parts, the gate does, too.
    async fn drop_at(&mut self, cast: &Cast, role: &Role, start: Start, ending: Ending, message: usize) -> bool {
        let scene = self.scene(cast, slice::from_ref(role), start).await;
        let (before, _) = Rows::of_key(&mut self.conn, &scene.key).await;
        let (dropping, actor) = (Arc::new(Notify::new()), &self.actors[0]);
        let is_gate = actor.hand == Hand::Gate;
        let act = actor.act_until(scene.told[0].clone(), dropping.clone(), ending);
        let Some(told) = self.stage.interrupt(act, message, &dropping).await else { return false };
        self.runs += 1;
        self.the_connection_is_as_new().await;
        let judged = if if is_gate { message < 2 + usize::from(is_distributed()) } else { !ending.commits } {
            scene.judge_nothing(&mut self.conn, &before).await
        } else {
            let is_whole = is_gate && scene.is_one();
            scene.judge_cut(&mut self.conn, told.or(is_whole.then_some(Outcome::Swept)), false).await
        };
        if let Err(says) = judged {
            panic!("{} | {start:?} dropped at message {message}, {ending:?}\n{says}", role.name);
        }
        true
    }

    /// The next user of the connection finds no transaction, and the server's own settings.
    async fn the_connection_is_as_new(&mut self) {
        let actor = &self.actors[0];
        // The gate goes on behind a call that was dropped.
        soon(actor.gate.balance(cast::PLAN.key("fence"))).await.unwrap();
        let mut conn = soon(actor.pool.acquire()).await.unwrap();
        let sql = "select txid_current_if_assigned() is null and current_setting('lock_timeout') = '0'
                      and current_setting('statement_timeout') = '0'";
        assert!(sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut *conn).await.unwrap());
        let sql = "select state = 'idle' from pg_stat_activity where pid = $1";
        let is_idle = sqlx::query_scalar::<_, bool>(sql).bind(self.stage.lines[0].pid());
        assert!(is_idle.fetch_one(&mut self.conn).await.unwrap(), "the connection was in a transaction");
        drop(conn);
        // The pool tries a connection that comes back, too.
        soon(async {
            while actor.pool.num_idle() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Crashes the server with each of some roles at its message of this number, and starts it again.
    /// Returns how many have such a message.
    async fn crash(mut self, server: &mut Server, roles: &[InCast], message: usize) -> usize {
        let mut scenes = Vec::new();
        for (cast, role) in roles {
            scenes.push(self.scene(cast, slice::from_ref(role), cast.starts[0]).await);
        }
        let acts: Vec<_> =
            self.actors.iter().zip(&scenes).map(|(actor, scene)| actor.act(scene.told[0].clone())).collect();
        let sessions = self.stage.hold(acts, message).await;
        let held = sessions.iter().filter(|session| !session.is_done()).count();
        if held == 0 {
            self.stage.end(sessions).await;
            return 0;
        }
        server.crash().unwrap();
        server.restart().unwrap();
        let told = self.stage.end(sessions).await;
        let mut conn = connect(server).await;
        for (((actor, (_, role)), scene), mut told) in self.actors.iter().zip(roles).zip(scenes).zip(told) {
            if role.has_id {
                told = actor.act(scene.told[0].clone()).await;
            }
            if let Err(says) = scene.judge_cut(&mut conn, Some(told), true).await {
                panic!("{} with a crash at message {message}\n{says}", role.name);
            }
        }
        held
    }

    /// Rows of a key of its own.
    async fn scene(&mut self, cast: &Cast, roles: &[Role], start: Start) -> Scene {
        self.keys += 1;
        let apart = self.actors.iter().map(|actor| actor.hand == Hand::Gate).collect();
        Scene::prepare(&mut self.conn, self.keys.to_string(), cast, roles, apart, start, self.before).await
    }

    /// Says how much was tried.
    pub(crate) fn close(self, what: &str) {
        let Self { scenes, runs, began, .. } = self;
        println!("{what}: {scenes} scenes, {runs} runs in {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// A role in its cast.
type InCast = (&'static Cast, &'static Role);

/// Crashes a server at every message of every role. The roles go side by side, each on a key of its own. But a sweeper,
/// which meets the rows of all keys, goes alone.
pub(crate) async fn crash_at_each(hand: Hand) {
    let began = Instant::now();
    let mut server = Server::builder().durable().setting("max_connections", "200").start().unwrap();
    migrate::run(&mut connect(&server).await).await.unwrap();
    let roles = cast::ALL.into_iter().flat_map(|cast| cast.roles.iter().map(move |role| (cast, role)));
    let roles = roles.filter(|(_, role)| hand.can(role));
    let (sweepers, callers): (Vec<InCast>, Vec<InCast>) =
        roles.partition(|(_, role)| (role.verb)("", Receipt::default()).sweeps());
    let (mut keys, mut crashes, mut cut) = (0, 0, 0);
    for roles in iter::once(callers).chain(sweepers.into_iter().map(|role| vec![role])) {
        for message in 1.. {
            let theatre = Theatre { keys, ..Theatre::on(&server, vec![hand; roles.len()]).await };
            keys += roles.len() as u64;
            let held = theatre.crash(&mut server, &roles, message).await;
            if held == 0 {
                break;
            }
            (crashes, cut) = (crashes + 1, cut + held);
        }
    }
    println!("crashes under a {hand:?}: {crashes} with {cut} verbs in {:.1} s", began.elapsed().as_secs_f64());
}

async fn connect(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

impl Hand {
    fn any(self, cast: &Cast, dice: &mut Rng) -> Role {
        let roles = if self == Self::Sql { cast::IN_SQL_ROLES } else { cast.roles };
        let can: Vec<_> = roles.iter().filter(|role| self.can(role)).collect();
        **dice.choice(&can).unwrap()
    }

    fn can(self, role: &Role) -> bool {
        self != Self::Gate || role.is_for_gates
    }
}

impl Actor {
    /// The verb, until its call is to be dropped.
    fn act_until(
        &self,
        verb: Verb,
        dropping: Arc<Notify>,
        ending: Ending,
    ) -> impl Future<Output = Option<Outcome>> + Send + 'static {
        let (hand, pool, gate) = (self.hand, self.pool.clone(), self.gate.clone());
        async move {
            match hand {
                Hand::Limiter => verb.joined_until(&dropping, &pool, ending).await,
                _ => verb.through_until(&dropping, &gate, ending).await,
            }
        }
    }

    fn act(&self, verb: Verb) -> impl Future<Output = Outcome> + Send + 'static {
        let (hand, pool, gate) = (self.hand, self.pool.clone(), self.gate.clone());
        async move {
            match hand {
                _ if verb.sweeps() => verb.swept(&pool).await,
                Hand::Limiter => verb.joined(&pool).await,
                Hand::Gate => verb.through(&gate).await,
                Hand::Sql => verb.in_sql(&pool).await,
            }
        }
    }
}
