use futures_util::future::select;
use sqlx::PgPool;
use tokio::sync::oneshot;

use crate::gate::merge::Lanes;
use crate::gate::server::Server;

/// The lanes to a node. Its connections are closed when the entry's are, as they are the gate's own.
pub(super) struct NodeLanes {
    pub(super) lanes: Lanes,
    pub(super) server: Server,
    /// When this is dropped, the task that closes the connections ends.
    _watched: oneshot::Sender<()>,
}

impl NodeLanes {
    /// Must be called in a runtime.
    pub(super) fn new(lanes: Lanes, server: Server, entry: &PgPool) -> Self {
        let (watched, is_gone) = oneshot::channel();
        let (node, entry) = (server.pool.clone(), entry.clone());
        tokio::spawn(async move {
            select(entry.close_event(), is_gone).await;
            if entry.is_closed() {
                node.close().await;
            }
        });
        Self { lanes, server, _watched: watched }
    }
}
