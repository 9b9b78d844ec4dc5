//! The usual store for limits, to measure beside ours: a script or a command for each call, over one connection that
//! pipelines the calls of all callers.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, process};

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncConnectionConfig, Client, Script};

use crate::scene::{Scene, Workload};
use crate::support::Fault;
use crate::support::wire::Wire;

/// A server that somebody else started, or a private one.
pub(crate) struct Redis {
    client: Client,
    process: Option<Private>,
}

impl Redis {
    /// The server that `REDIS_URL` names, else a private one that keeps nothing. None where there is neither.
    pub(crate) async fn find() -> Result<Option<Self>, Fault> {
        match env::var("REDIS_URL") {
            Ok(url) => {
                let redis = Self { client: Client::open(url)?, process: None };
                let reached = connect(&redis.client).await;
                reached.map_err(|fault| format!("the server that REDIS_URL names does not answer: {fault}"))?;
                Ok(Some(redis))
            }
            Err(_) => Self::start("memory", &["--appendonly", "no"]).await,
        }
    }

    /// A private server that answers when its log is on the disk, as a durable table does.
    pub(crate) async fn find_synced() -> Result<Option<Self>, Fault> {
        Self::start("synced", &["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// None where there is no such program.
    async fn start(name: &str, settings: &[&str]) -> Result<Option<Self>, Fault> {
        let Some(process) = Private::start(name, settings)? else { return Ok(None) };
        let redis = Self { client: Client::open(url(&process.socket()))?, process: Some(process) };
        for _ in 0..STARTUP_TRIES {
            if connect(&redis.client).await.is_ok() {
                return Ok(Some(redis));
            }
            tokio::time::sleep(STARTUP_PAUSE).await;
        }
        Err("redis-server was started and does not answer".into())
    }

    /// Whether this program started it.
    pub(crate) const fn is_private(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn process_id(&self) -> Option<i32> {
        self.process.as_ref().and_then(|private| private.child.id().try_into().ok())
    }

    /// The server's version, and how it keeps its log.
    pub(crate) async fn about(&self) -> Result<String, Fault> {
        let mut conn = connect(&self.client).await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut conn).await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("of unknown version");
        let mut about = vec![format!("Redis {version}")];
        for setting in ["appendonly", "appendfsync", "save"] {
            // A hosted server may keep its settings to itself.
            let known = redis::cmd("CONFIG").arg("GET").arg(setting).query_async::<(String, String)>(&mut conn).await;
            if let Ok((setting, value)) = known {
                about.push(format!("{setting} = {value:?}"));
            }
        }
        Ok(about.join(", "))
    }

    /// Connects, and exhausts the limit of a scene whose calls are to be refused.
    pub(crate) async fn open(&self, scene: &Scene, counts: bool) -> Result<Calls, Fault> {
        let mut conn = match scene.workload.round_trip() {
            None => connect(&self.client).await?,
            Some(round_trip) => {
                let private = self.process.as_ref().ok_or("a wire leads to a private Redis alone")?;
                let wire = Wire::to(&private.socket(), round_trip)?;
                connect(&Client::open(url(&wire.socket()))?).await?
            }
        };
        if !scene.is_granted() {
            let _: () = conn.del(&[EXHAUSTED, &counter(EXHAUSTED)]).await?;
        }
        let script = if scene.workload == Workload::Three { SEVERAL_BUCKETS } else { ONE_BUCKET };
        let calls = Calls { conn, script: (!counts).then(|| Script::new(script)) };
        if !scene.is_granted() {
            calls.decide(scene, 0).await?;
        }
        Ok(calls)
    }
}

fn url(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, Fault> {
    // By default a call fails after half a second, which a busy disk may take.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Redis during a turn.
pub(crate) struct Calls {
    conn: MultiplexedConnection,
    /// `None` if the calls are counted.
    script: Option<Script>,
}

impl Calls {
    pub(crate) async fn decide(&self, scene: &Scene, user: u32) -> Result<bool, Fault> {
        let keys = match scene.workload {
            Workload::Hot | Workload::Open => vec![TOTAL.to_owned()],
            Workload::Three => {
                vec![per_user(user), format!("tollgate-bench:tenant:{}", user % 100), TOTAL.to_owned()]
            }
            Workload::Refused => vec![EXHAUSTED.to_owned()],
            _ => vec![per_user(user)],
        };
        let (capacity, per_second) = if scene.is_granted() { (1e9, 1e9) } else { (1.0, 1e-11) };
        let conn = &mut self.conn.clone();
        let Some(script) = &self.script else {
            let mut counts = redis::pipe();
            for key in keys {
                counts.incr(counter(&key), 1);
            }
            let counts: Vec<f64> = counts.query_async(conn).await?;
            return Ok(counts.iter().all(|count| *count <= capacity));
        };
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        let granted: u8 = call.arg(capacity).arg(per_second).arg(1).invoke_async(conn).await?;
        Ok(granted == 1)
    }
}

/// The key of a counter, beside that of a bucket.
fn counter(key: &str) -> String {
    format!("{key}:count")
}

fn per_user(user: u32) -> String {
    format!("tollgate-bench:user:{user}")
}

/// A private server on a Unix socket; dropping it stops it and deletes its data.
struct Private {
    child: Child,
    home: PathBuf,
}

impl Private {
    fn start(name: &str, settings: &[&str]) -> Result<Option<Self>, Fault> {
        let home = env::temp_dir().join(format!("tollgate-bench-{}-{name}", process::id()));
        fs::create_dir_all(&home)?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket", "redis.sock"]).args(settings).current_dir(&home);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => Ok(Some(Self { child, home })),
            Err(error) => {
                fs::remove_dir_all(&home)?;
                if error.kind() == ErrorKind::NotFound { Ok(None) } else { Err(error.into()) }
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.home.join("redis.sock")
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // If it is gone already, nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.home);
    }
}

const ONE_BUCKET: &str = include_str!("token_bucket.lua");
const SEVERAL_BUCKETS: &str = include_str!("token_buckets.lua");

const TOTAL: &str = "tollgate-bench:total";
const EXHAUSTED: &str = "tollgate-bench:exhausted";

/// Together ten seconds.
const STARTUP_TRIES: u32 = 500;
const STARTUP_PAUSE: Duration = Duration::from_millis(20);
