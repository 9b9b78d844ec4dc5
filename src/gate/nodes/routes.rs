#![expect(clippy::disallowed_methods, reason = "the monotonic clock says when the catalogue was read")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use futures_util::TryFutureExt;
use tokio::runtime::Handle;

use super::catalogue::{Node, Placement};
use super::node_lanes::NodeLanes;
use crate::error::{Error, Step, chain};
use crate::gate::connection::{Connection, within};
use crate::gate::merge::{Lanes, Width};
use crate::gate::server::Server;
use crate::gate::shared::Shared;
use crate::limit::Storage;
use crate::store::database;
use crate::values::lock::{read, write};

/// The lanes to each node, as Citus's catalogue said some seconds ago where the parts lie.
///
/// If a part has moved since, its calls still reach it: the node that they are sent to passes them on, as the entry
/// does. So an old reading costs time, and no token.
pub(super) struct Routes {
    shared: Arc<Shared>,
    width: Width,
    map: RwLock<RouteTable>,
    built: Instant,
    /// When the catalogue is to be read again, in seconds since `built`.
    due: AtomicU64,
}

#[derive(Default)]
struct RouteTable {
    of_parts: HashMap<u16, Arc<NodeLanes>>,
    /// `None` for a node that takes no connection of this gate.
    of_nodes: HashMap<Node, Option<Arc<NodeLanes>>>,
}

impl Routes {
    pub(super) fn new(shared: Arc<Shared>, width: Width) -> Self {
        Self { shared, width, map: RwLock::default(), built: Instant::now(), due: AtomicU64::new(0) }
    }

    /// The lanes to the node of a part; `None` if it is not known, or takes no connection.
    pub(super) fn lanes(self: &Arc<Self>, part: u16) -> Option<Arc<NodeLanes>> {
        let lanes = read(&self.map).of_parts.get(&part).cloned();
        self.read_if_due(lanes.as_ref().is_some_and(|lanes| lanes.server.shards.has_missed()));
        lanes
    }

    /// Starts a task that reads the catalogue, if it is time: a second after the last one if a shard was missed.
    fn read_if_due(self: &Arc<Self>, has_missed: bool) {
        let (due, now) = (self.due.load(Ordering::Relaxed), self.built.elapsed().as_secs());
        let early = if has_missed { EVERY - 1 } else { 0 };
        if now + early < due
            || self.due.compare_exchange(due, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let routes = self.clone();
            runtime.spawn(async move {
                if let Err(error) = routes.read().await {
                    tracing::warn!(error = %chain(&error), "could not read on which nodes the parts lie");
                }
            });
        }
    }

    /// Reads where the parts lie. Nodes that are still named keep their lanes.
    async fn read(&self) -> Result<(), Error> {
        let Shared { entry, settings, .. } = &*self.shared;
        let mut connection = Connection::acquire_sound(&self.shared, entry, "").await?;
        let placements = self.within(Placement::all(&mut connection, settings.backend.parts)).await?;
        let before = read(&self.map).of_nodes.clone();
        let mut of_nodes = HashMap::new();
        for Placement { node, .. } in &placements {
            if of_nodes.contains_key(node) {
                continue;
            }
            let lanes = match before.get(node) {
                Some(Some(lanes)) => Some(lanes.clone()),
                refused => self.reach(node, &mut connection, refused.is_none()).await,
            };
            of_nodes.insert(node.clone(), lanes);
        }
        connection.finished();
        connection.give_back(&self.shared).await;
        for (node, lanes) in &of_nodes {
            if let Some(NodeLanes { server, .. }) = lanes.as_deref() {
                self.find_shards(node, server, &placements).await;
            }
        }
        let durable = placements.into_iter().filter(|placement| placement.storage == Storage::Durable);
        let lanes = |Placement { part, node, .. }| Some((part, of_nodes[&node].clone()?));
        let of_parts = durable.filter_map(lanes).collect();
        *write(&self.map) = RouteTable { of_parts, of_nodes };
        Ok(())
    }

    /// Tells a node's lanes the shards that lie there. They get none if the node does not hold them for this gate. The
    /// gate asks it at first, and after it missed a shard; then an event says so.
    async fn find_shards(&self, node: &Node, server: &Server, placements: &[Placement]) {
        let here = placements.iter().filter(|placement| placement.node == *node);
        let mut here: Vec<_> = here.map(|Placement { storage, part, shard, .. }| (*storage, *part, *shard)).collect();
        let is_news = server.shards.take_missed();
        if is_news || server.shards.is_empty() {
            let holds = match here.first() {
                Some((.., shard)) => self.holds(server, node, *shard).await,
                None => Ok(true),
            };
            if !matches!(holds, Ok(true)) {
                here.clear();
                if is_news {
                    let error = holds.err().map(|error| chain(&error));
                    tracing::warn!(%node, error, "a node does not hold its shards for this gate; Citus plans batches");
                }
            }
        }
        server.shards.know(node.group, &here);
    }

    async fn holds(&self, server: &Server, node: &Node, shard: i64) -> Result<bool, Error> {
        let mut connection = Connection::acquire(&self.shared, server, "").await?;
        let holds = self.within(node.holds(&mut connection, shard)).await?;
        connection.finished();
        connection.give_back(&self.shared).await;
        Ok(holds)
    }

    /// Lanes to a node; `None` if the gate cannot connect to it. An event says so the first time.
    async fn reach(&self, node: &Node, entry: &mut Connection, is_news: bool) -> Option<Arc<NodeLanes>> {
        let Shared { entry: Server { pool, .. }, settings, .. } = &*self.shared;
        let server = Server::new(node.pool(pool, settings.backend), settings.statement_timeout);
        let why = match self.leads_to(&server, node, entry).await {
            Ok(true) => {
                let lanes = Lanes::new(&self.shared, &server, self.width.afresh());
                return Some(Arc::new(NodeLanes::new(lanes, server, pool)));
            }
            Ok(false) => "another server answers at its address".to_owned(),
            Err(error) => chain(&error),
        };
        if is_news {
            tracing::warn!(%node, error = why, "the gate cannot connect to a node; the entry serves its parts");
        }
        None
    }

    async fn leads_to(&self, server: &Server, node: &Node, entry: &mut Connection) -> Result<bool, Error> {
        let mut connection = Connection::acquire(&self.shared, server, "").await?;
        let leads_there = self.within(node.is_reached(&mut connection, entry)).await?;
        connection.finished();
        connection.give_back(&self.shared).await;
        Ok(leads_there)
    }

    async fn within<T>(&self, asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
        let asked = asked.map_err(|source| database(Step::Read, "", source));
        within(self.shared.settings.statement_timeout, Step::Read, "", asked).await
    }
}

/// For how many seconds a reading is good.
const EVERY: u64 = 10;
