//! A pooler in transaction mode that does not follow named statements, as PgBouncer was before 1.21: each transaction gets the
//! first server session that is free.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, OwnedMutexGuard, RwLock};

/// A pooler in front of the server of a database, gone with the value.
pub(crate) struct Pooler {
    url: String,
    directory: PathBuf,
}

impl Pooler {
    /// A pooler for the database at `url`; a task of the current runtime serves it.
    pub(crate) fn new(url: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = url.parse::<PgConnectOptions>().unwrap().ssl_mode(PgSslMode::Disable);
        let directory = format!("tollgate_pooler_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir(&directory).unwrap();
        let listener = UnixListener::bind(socket(&directory, server.get_port())).unwrap();
        let user = server.get_username();
        let database = server.get_database().unwrap();
        let (host, port) = (directory.display(), server.get_port());
        let url = format!("postgres://{user}@localhost:{port}/{database}?host={host}&sslmode=disable");
        tokio::spawn(serve(listener, server, Arc::default()));
        Self { url, directory }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Session = Arc<Mutex<Box<dyn Stream>>>;

/// All sessions, in the order in which they were opened.
type Sessions = Arc<RwLock<Vec<Session>>>;

async fn serve(listener: UnixListener, server: PgConnectOptions, sessions: Sessions) {
    while let Ok((client, _)) = listener.accept().await {
        let host = PathBuf::from(server.get_host());
        let directory = server.get_socket().cloned().or_else(|| host.is_absolute().then_some(host));
        let session: Box<dyn Stream> = match directory {
            Some(directory) => Box::new(UnixStream::connect(socket(&directory, server.get_port())).await.unwrap()),
            None => Box::new(TcpStream::connect((server.get_host(), server.get_port())).await.unwrap()),
        };
        // It ends with its client.
        tokio::spawn(attend(client, session, sessions.clone()));
    }
}

async fn attend(mut client: UnixStream, mut session: Box<dyn Stream>, sessions: Sessions) -> std::io::Result<()> {
    let start = frame(&mut client, false).await?;
    session.write_all(&start).await?;
    // The client authenticates itself to the session that it brings; the server asks, until it is ready.
    loop {
        let answer = frame(&mut session, true).await?;
        client.write_all(&answer).await?;
        match answer[0] {
            READY => break,
            AUTHENTICATION if !matches!(answer[8], OK | SASL_FINAL) => {
                session.write_all(&frame(&mut client, true).await?).await?;
            }
            _ => {}
        }
    }
    sessions.write().await.push(Arc::new(Mutex::new(session)));
    let mut held: Option<OwnedMutexGuard<Box<dyn Stream>>> = None;
    loop {
        let message = frame(&mut client, true).await?;
        if message[0] == TERMINATE {
            return Ok(());
        }
        let mut session = match held.take() {
            Some(session) => session,
            None => first_free(&sessions).await,
        };
        session.write_all(&message).await?;
        let mut is_idle = false;
        if matches!(message[0], SYNC | QUERY) {
            is_idle = pass_answers(&mut **session, &mut client).await?;
        }
        held = (!is_idle).then_some(session);
    }
}

/// Returns whether the session is in no transaction.
async fn pass_answers(session: &mut dyn Stream, client: &mut UnixStream) -> std::io::Result<bool> {
    loop {
        let answer = frame(session, true).await?;
        client.write_all(&answer).await?;
        if answer[0] == READY {
            return Ok(answer[5] == b'I');
        }
    }
}

async fn first_free(sessions: &Sessions) -> OwnedMutexGuard<Box<dyn Stream>> {
    let sessions = sessions.read().await.clone();
    let free = sessions.iter().find_map(|session| session.clone().try_lock_owned().ok());
    match free {
        Some(session) => session,
        None => sessions[0].clone().lock_owned().await,
    }
}

/// A whole message; the first one of a client has no kind.
async fn frame(from: &mut (impl AsyncRead + Unpin + ?Sized), has_kind: bool) -> std::io::Result<Vec<u8>> {
    let mut message = Vec::new();
    if has_kind {
        message.push(from.read_u8().await?);
    }
    let length = from.read_u32().await?;
    message.extend(length.to_be_bytes());
    let start = message.len();
    message.resize(start + length as usize - 4, 0);
    from.read_exact(&mut message[start..]).await?;
    Ok(message)
}

fn socket(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

const AUTHENTICATION: u8 = b'R';
const READY: u8 = b'Z';
const QUERY: u8 = b'Q';
const SYNC: u8 = b'S';
const TERMINATE: u8 = b'X';
const OK: u8 = 0;
const SASL_FINAL: u8 = 12;
