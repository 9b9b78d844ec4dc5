#![expect(clippy::disallowed_methods, reason = "the monotonic clock says when the catalogue was read")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use futures_util::TryFutureExt;
use tokio::runtime::Handle;

use super::catalogue::Node;
use super::node_lanes::NodeLanes;
use crate::error::{Error, Step, chain};
use crate::gate::connection::{Connection, within};
use crate::gate::merge::{Lanes, Width};
use crate::gate::server::Server;
use crate::gate::shared::Shared;
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
        self.read_if_due();
        read(&self.map).of_parts.get(&part).cloned()
    }

    /// Starts a task that reads the catalogue, if it is time.
    fn read_if_due(self: &Arc<Self>) {
        let (due, now) = (self.due.load(Ordering::Relaxed), self.built.elapsed().as_secs());
        if now < due || self.due.compare_exchange(due, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_err() {
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
        let nodes = self.within(Node::of_parts(&mut connection, settings.backend.parts)).await?;
        let before = read(&self.map).of_nodes.clone();
        let mut of_nodes = HashMap::new();
        for node in nodes.values() {
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
        let lanes = |(part, node)| Some((part, of_nodes[&node].clone()?));
        let of_parts = nodes.into_iter().filter_map(lanes).collect();
        *write(&self.map) = RouteTable { of_parts, of_nodes };
        Ok(())
    }

    /// Lanes to a node; `None` if the gate cannot connect to it. An event says so the first time.
    async fn reach(&self, node: &Node, entry: &mut Connection, is_news: bool) -> Option<Arc<NodeLanes>> {
        let Shared { entry: Server { pool, .. }, settings, .. } = &*self.shared;
        let server = Server::new(node.pool(pool), settings.statement_timeout);
        let why = match self.leads_to(&server, node, entry).await {
            Ok(true) => {
                let lanes = Lanes::new(&self.shared, &server, self.width.afresh());
                return Some(Arc::new(NodeLanes::new(lanes, &server, pool)));
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
