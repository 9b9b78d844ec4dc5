//! The line of one session to the server. It holds each message that acts until a scheduler lets it go.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};

use crate::proxy::{Door, EXECUTE, QUERY, SYNC, reach};

/// The side that a session waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turn {
    /// Its own next message, if there is one.
    Client,
    /// The scheduler. The client has sent something that acts.
    Scheduler,
    /// The server's answer.
    Server,
}

/// A wire in front of the server for one session, gone with the value.
pub(crate) struct Line {
    door: Door,
    shared: Arc<Shared>,
}

struct Shared {
    server: PgConnectOptions,
    turn: Mutex<Turn>,
    go: Notify,
    is_open: AtomicBool,
    holds_all: AtomicBool,
    loses_answer: AtomicBool,
    cuts: watch::Sender<u32>,
    has_timed_out: AtomicBool,
    pid: AtomicI32,
    events: watch::Sender<u64>,
}

impl Line {
    /// A line to the database at `url`, open at first. Each turn on it counts as one of the `events`.
    pub(crate) fn new(url: &str, events: watch::Sender<u64>) -> Self {
        let (door, listener, server) = Door::open(url);
        let shared = Arc::new(Shared {
            server,
            turn: Mutex::new(Turn::Client),
            go: Notify::new(),
            is_open: AtomicBool::new(true),
            holds_all: AtomicBool::new(false),
            loses_answer: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            has_timed_out: AtomicBool::new(false),
            pid: AtomicI32::new(0),
            events,
        });
        tokio::spawn(serve(listener, shared.clone()));
        Self { door, shared }
    }

    /// How to connect over it.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.door.options()
    }

    pub(crate) fn turn(&self) -> Turn {
        *self.shared.turn.lock().unwrap()
    }

    /// The server process behind it.
    pub(crate) fn pid(&self) -> i32 {
        self.shared.pid.load(Ordering::SeqCst)
    }

    /// Whether the server has given up a wait for a lock since the line was closed.
    pub(crate) fn has_timed_out(&self) -> bool {
        self.shared.has_timed_out.load(Ordering::SeqCst)
    }

    /// Holds what acts from now on.
    pub(crate) fn close(&self) {
        self.shared.has_timed_out.store(false, Ordering::SeqCst);
        self.shared.is_open.store(false, Ordering::SeqCst);
    }

    /// While it is closed: whether it holds messages that do not act, too.
    pub(crate) fn hold_all(&self, whether: bool) {
        self.shared.holds_all.store(whether, Ordering::SeqCst);
    }

    /// Lets everything through, also what it holds.
    pub(crate) fn open(&self) {
        self.shared.is_open.store(true, Ordering::SeqCst);
        self.shared.go.notify_one();
    }

    /// Breaks the connection.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks the connection in place of the next answer.
    pub(crate) fn lose_answer(&self) {
        self.shared.loses_answer.store(true, Ordering::SeqCst);
    }

    /// Lets go what it holds.
    pub(crate) fn let_go(&self) {
        self.shared.turn(Turn::Server);
        self.shared.go.notify_one();
    }
}

impl Shared {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn turn(&self, turn: Turn) {
        *self.turn.lock().unwrap() = turn;
        self.events.send_modify(|events| *events += 1);
    }

    /// Passes on what a client sends, up to each message that the server answers.
    async fn forward(&self, from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
        let mut from = BufReader::new(from);
        let (mut group, mut acts) = (Vec::new(), false);
        // The start-up message has no type.
        read_body(&mut from, &mut group).await?;
        to.write_all(&group).await?;
        group.clear();
        loop {
            let kind = from.read_u8().await?;
            group.push(kind);
            let start = read_body(&mut from, &mut group).await?;
            acts |= kind == EXECUTE || kind == QUERY && !is_quiet(&group[start..]);
            acts |= self.holds_all.load(Ordering::SeqCst);
            if !matches!(kind, SYNC | QUERY | FLUSH | PASSWORD | TERMINATE) {
                continue;
            }
            if std::mem::take(&mut acts) && !self.is_open() {
                self.turn(Turn::Scheduler);
                while !self.is_open() && *self.turn.lock().unwrap() == Turn::Scheduler {
                    self.go.notified().await;
                }
            }
            self.turn(Turn::Server);
            to.write_all(&group).await?;
            group.clear();
        }
    }

    /// Passes on what the server answers.
    async fn answer(&self, from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
        let mut from = BufReader::new(from);
        let mut answer = Vec::new();
        loop {
            let kind = from.read_u8().await?;
            answer.push(kind);
            let start = read_body(&mut from, &mut answer).await?;
            let body = &answer[start..];
            match kind {
                KEY => self.pid.store(i32::from_be_bytes(body[..4].try_into().unwrap()), Ordering::SeqCst),
                ERROR if body.windows(TIMED_OUT.len()).any(|code| code == TIMED_OUT) => {
                    self.has_timed_out.store(true, Ordering::SeqCst);
                }
                READY if self.loses_answer.swap(false, Ordering::SeqCst) => return Ok(()),
                // Before the client can send more.
                READY => self.turn(Turn::Client),
                _ => {}
            }
            if from.buffer().is_empty() {
                to.write_all(&answer).await?;
                answer.clear();
            }
        }
    }
}

/// Reads the length and the body of a message behind what was read; where the body starts.
async fn read_body(from: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) -> std::io::Result<usize> {
    let length = from.read_u32().await?;
    into.extend(length.to_be_bytes());
    let start = into.len();
    into.resize(start + length as usize - 4, 0);
    from.read_exact(&mut into[start..]).await?;
    Ok(start)
}

/// Whether a statement neither sees nor changes what others do, so that its place among theirs does not matter.
fn is_quiet(sql: &[u8]) -> bool {
    let sql = String::from_utf8_lossy(sql).trim_start().to_ascii_lowercase();
    ["begin", "savepoint", "set "].iter().any(|quiet| sql.starts_with(quiet))
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let server = reach(&shared.server).await.unwrap();
        let shared = shared.clone();
        tokio::spawn(async move {
            let (from, to) = client.split();
            let (read, write) = tokio::io::split(server);
            let mut cuts = shared.cuts.subscribe();
            tokio::select! {
                _ = shared.forward(from, write) => {}
                _ = shared.answer(read, to) => {}
                _ = cuts.changed() => {}
            }
            // A new connection begins here.
            shared.turn(Turn::Client);
        });
    }
}

const FLUSH: u8 = b'H';
const PASSWORD: u8 = b'p';
const TERMINATE: u8 = b'X';
const ERROR: u8 = b'E';
const KEY: u8 = b'K';
const READY: u8 = b'Z';
/// The field of an error that holds `lock_not_available`.
const TIMED_OUT: &[u8] = b"C55P03\0";
