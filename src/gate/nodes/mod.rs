mod catalogue;
mod node_lanes;
mod routes;

use std::sync::Arc;

use super::merge::{Lanes, Width};
use super::reply::QueuedCall;
use super::shared::Shared;
use crate::error::Error;
use routes::Routes;

/// The lanes to each server that a gate asks.
///
/// One server is the entry, which the builder's pool names. A gate that goes by node sends the calls of a part to the
/// node on which the part lies. There it asks the tables of shards, where Citus plans nothing, or else Citus plans once
/// and needs no network. The entry gets all other calls: those over several parts, and those of a node that takes no
/// connection of the gate.
pub(super) struct Nodes {
    entry: Lanes,
    /// `None` if the entry serves all calls.
    routes: Option<Arc<Routes>>,
}

impl Nodes {
    pub(super) fn new(shared: &Arc<Shared>, width: Width, by_node: bool) -> Self {
        let routes = by_node.then(|| Arc::new(Routes::new(shared.clone(), width.afresh())));
        Self { entry: Lanes::new(shared, &shared.entry, width), routes }
    }

    /// Queues a call. Fails if the queue is full or the server is silent.
    pub(super) fn submit(&self, call: QueuedCall) -> Result<(), Error> {
        let node = self.routes.as_ref().and_then(|routes| routes.lanes(call.call.part()?));
        node.as_ref().map_or(&self.entry, |node| &node.lanes).submit(call)
    }
}
