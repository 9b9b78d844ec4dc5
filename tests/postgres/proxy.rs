//! A wire between a test and the server: it counts round trips, can hold a caller between two of them, and can break.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, PgConnection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

/// A wire in front of the server of a database, gone with the value.
pub(crate) struct Proxy {
    door: Door,
    wire: Arc<Wire>,
    server: Arc<Mutex<PgConnectOptions>>,
}

impl Proxy {
    /// A proxy for the database at `url`; a task of the current runtime serves it.
    pub(crate) fn new(url: &str) -> Self {
        let (door, listener, server) = Door::open(url);
        let wire =
            Wire { allowed: watch::Sender::new(u64::MAX), last_heard: AtomicU64::new(u64::MAX), ..Wire::default() };
        let wire = Arc::new(wire);
        let server = Arc::new(Mutex::new(server));
        tokio::spawn(serve(listener, server.clone(), wire.clone()));
        Self { door, wire, server }
    }

    /// How to connect over the proxy.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.door.options()
    }

    /// A connection over the proxy.
    pub(crate) async fn connect(&self) -> PgConnection {
        self.options().connect().await.unwrap()
    }

    /// How many round trips there were, from the start.
    pub(crate) fn trips(&self) -> u64 {
        self.wire.trips.load(Ordering::SeqCst)
    }

    /// How many statements there were, prepared or not: the pool's trials of its connections do not count.
    pub(crate) fn statements(&self) -> u64 {
        self.wire.statements.load(Ordering::SeqCst)
    }

    /// Lets so many statements through, prepared or not, and holds what comes after.
    pub(crate) fn hold_after(&self, statements: u64) {
        self.wire.allowed.send_replace(self.wire.statements.load(Ordering::SeqCst) + statements);
    }

    /// Returns once a caller is held.
    pub(crate) async fn until_held(&self) {
        self.wire.held.subscribe().wait_for(|held| *held > 0).await.unwrap();
    }

    /// Lets everything through.
    pub(crate) fn release(&self) {
        self.wire.allowed.send_replace(u64::MAX);
    }

    /// Breaks every connection; held messages are lost.
    pub(crate) async fn cut(&self) {
        self.wire.cuts.send_modify(|cuts| *cuts += 1);
        self.wire.held.subscribe().wait_for(|held| *held == 0).await.unwrap();
    }

    /// Cuts off every connection, as a router that forgets them does: both ends stand, and nothing passes. New ones
    /// work.
    pub(crate) fn strand(&self) {
        self.wire.stranded.send_modify(|stranded| *stranded += 1);
    }

    /// Swallows everything in both directions, as a network that is gone does: connections stand, also new ones, and
    /// nothing passes. Swallowed messages stay lost.
    pub(crate) fn swallow(&self) {
        self.wire.swallowing.store(true, Ordering::SeqCst);
    }

    /// Swallows nothing any more.
    pub(crate) fn pass_on(&self) {
        self.wire.swallowing.store(false, Ordering::SeqCst);
    }

    /// Delays each answer by so much.
    pub(crate) fn slow_down(&self, delay: Duration) {
        self.wire.delay.send_replace(delay);
    }

    /// How many statements were sent, whether they passed or not.
    pub(crate) fn sent(&self) -> u64 {
        self.wire.sent.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> u64 {
        self.wire.connections.load(Ordering::SeqCst)
    }

    /// Leads new connections to another server. Connections that stand still lead to the server before.
    pub(crate) fn lead_to(&self, url: &str) {
        *self.server.lock().unwrap() = url.parse().unwrap();
    }

    /// Breaks the connection, once, when the server has answered so many statements more: the last answer is lost.
    pub(crate) fn cut_after(&self, statements: u64) {
        self.wire.cutting.store(true, Ordering::SeqCst);
        self.wire.last_heard.store(self.wire.statements.load(Ordering::SeqCst) + statements, Ordering::SeqCst);
    }

    /// How many connections broke as [`cut_after`](Self::cut_after) said.
    pub(crate) fn lost_answers(&self) -> u64 {
        self.wire.lost_answers.load(Ordering::SeqCst)
    }

    /// Loses the answer of so many statements on, and all that follow, while the connections stand.
    pub(crate) fn silence_after(&self, statements: u64) {
        self.wire.cutting.store(false, Ordering::SeqCst);
        self.wire.last_heard.store(self.wire.statements.load(Ordering::SeqCst) + statements, Ordering::SeqCst);
    }

    /// Loses no answer any more.
    pub(crate) fn hear(&self) {
        self.wire.last_heard.store(u64::MAX, Ordering::SeqCst);
    }
}

/// A socket that clients take for that of a server, gone with the value.
pub(crate) struct Door {
    options: PgConnectOptions,
    directory: PathBuf,
}

impl Door {
    /// A door to the database at `url`, with its listener, and how to reach the server behind it.
    pub(crate) fn open(url: &str) -> (Self, UnixListener, PgConnectOptions) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = url.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable);
        let directory = format!("tollgate_proxy_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir(&directory).unwrap();
        let listener = UnixListener::bind(socket(&directory, server.get_port())).unwrap();
        (Self { options: server.clone().socket(&directory), directory }, listener, server)
    }

    /// How to connect through it.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[derive(Default)]
struct Wire {
    trips: AtomicU64,
    statements: AtomicU64,
    /// How many statements may have been carried out before the next message passes.
    allowed: watch::Sender<u64>,
    /// How many messages wait for that.
    held: watch::Sender<u32>,
    /// How often all connections were broken.
    cuts: watch::Sender<u32>,
    /// How often all connections were cut off.
    stranded: watch::Sender<u32>,
    /// From which statement on answers are lost.
    last_heard: AtomicU64,
    /// Whether the connection is broken with the first answer that is lost.
    cutting: AtomicBool,
    /// How many connections broke so.
    lost_answers: AtomicU64,
    swallowing: AtomicBool,
    delay: watch::Sender<Duration>,
    sent: AtomicU64,
    connections: AtomicU64,
}

impl Wire {
    /// Passes messages on, one by one.
    async fn forward(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
        // The start-up message has no type; with TLS disabled it is the first.
        let (mut kind, mut executes) = (None, false);
        loop {
            let length = from.read_u32().await?;
            let mut body = vec![0; length as usize - 4];
            from.read_exact(&mut body).await?;
            self.sent.fetch_add(matches!(kind, Some(EXECUTE | QUERY)).into(), Ordering::SeqCst);
            if self.swallowing.load(Ordering::SeqCst) {
                kind = Some(from.read_u8().await?);
                continue;
            }
            self.pass().await;
            if let Some(kind) = kind {
                to.write_u8(kind).await?;
                executes |= matches!(kind, EXECUTE | QUERY);
                // Each is answered by one ReadyForQuery.
                if matches!(kind, SYNC | QUERY) {
                    self.trips.fetch_add(1, Ordering::SeqCst);
                    self.statements.fetch_add(std::mem::take(&mut executes).into(), Ordering::SeqCst);
                }
            }
            to.write_u32(length).await?;
            to.write_all(&body).await?;
            kind = Some(from.read_u8().await?);
        }
    }

    /// Passes answers on.
    async fn answer(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
        let mut buffer = vec![0; 8192];
        loop {
            let length = from.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            if self.swallowing.load(Ordering::SeqCst) {
                continue;
            }
            let delay = *self.delay.borrow();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if self.statements.load(Ordering::SeqCst) < self.last_heard.load(Ordering::SeqCst) {
                to.write_all(&buffer[..length]).await?;
            } else if self.cutting.load(Ordering::SeqCst) {
                self.last_heard.store(u64::MAX, Ordering::SeqCst);
                self.lost_answers.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
        }
    }

    async fn pass(&self) {
        let mut allowed = self.allowed.subscribe();
        if self.statements.load(Ordering::SeqCst) < *allowed.borrow() {
            return;
        }
        let _held = Held::on(&self.held);
        let _ = allowed.wait_for(|allowed| self.statements.load(Ordering::SeqCst) < *allowed).await;
    }
}

/// A message that is held, until it passes or its connection is cut.
struct Held<'a>(&'a watch::Sender<u32>);

impl<'a> Held<'a> {
    fn on(count: &'a watch::Sender<u32>) -> Self {
        count.send_modify(|held| *held += 1);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

/// Where the server is gone, its clients find that they are connected to nobody.
async fn serve(listener: UnixListener, server: Arc<Mutex<PgConnectOptions>>, wire: Arc<Wire>) {
    while let Ok((client, _)) = listener.accept().await {
        let (wire, server) = (wire.clone(), server.lock().unwrap().clone());
        wire.connections.fetch_add(1, Ordering::SeqCst);
        let Ok(server) = reach(&server).await else { continue };
        tokio::spawn(join(client, server, wire));
    }
}

/// A connection to a server, over its socket if it has one.
pub(crate) async fn reach(server: &PgConnectOptions) -> std::io::Result<Box<dyn Stream>> {
    let (host, port) = (server.get_host(), server.get_port());
    let directory = server.get_socket().cloned().or_else(|| host.starts_with('/').then(|| host.into()));
    if let Some(directory) = directory {
        return Ok(Box::new(UnixStream::connect(socket(&directory, port)).await?));
    }
    let stream = TcpStream::connect((host, port)).await?;
    // A message is several small writes.
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Serves one connection until either side ends it.
async fn join(mut client: UnixStream, server: impl AsyncRead + AsyncWrite, wire: Arc<Wire>) {
    let (from, to) = client.split();
    let (mut read, mut write) = tokio::io::split(server);
    let (mut cuts, mut stranded) = (wire.cuts.subscribe(), wire.stranded.subscribe());
    tokio::select! {
        _ = wire.forward(from, &mut write) => {}
        _ = wire.answer(&mut read, to) => {}
        _ = cuts.changed() => {}
        _ = stranded.changed() => drop(cuts.changed().await),
    }
}

fn socket(directory: &std::path::Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

pub(crate) const EXECUTE: u8 = b'E';
pub(crate) const QUERY: u8 = b'Q';
pub(crate) const SYNC: u8 = b'S';
