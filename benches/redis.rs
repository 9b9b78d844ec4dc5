//! How fast is the gate beside the usual token bucket in Redis?
//!
//! `REDIS_URL=redis://127.0.0.1 cargo bench --features bench --bench redis [-- --quick]`
//!
//! Redis runs a script for each call, over one connection which pipelines the calls of all callers. It takes turns with the
//! gate and the baselines of `tollgate bench`, on the same machine and for as many callers. What this does not measure: a
//! network, Redis with the same durability (the durable tables survive a power cut; how often Redis writes its log is the
//! server's setting, printed below), and Redis on cores of its own.

use std::env;
use std::error::Error;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, Client, Script};
use tollgate::bench::{Bench, Contender, Fault, Scene, Session, Settings, Workload, server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Ok(url) = env::var("REDIS_URL") else {
        println!("nothing is measured beside Redis: REDIS_URL names no server");
        return Ok(());
    };
    let usual = if env::args().any(|arg| arg == "--quick") { Settings::quick() } else { Settings::default() };
    let workloads = vec![Workload::Uniform, Workload::Hot, Workload::Refused];
    let settings = Settings { workloads, callers: vec![1, 64, 256], ..usual };
    let redis = Redis { client: Client::open(url)? };
    let about = redis.about().await?;
    let server = server().await?;
    let bench = Bench::new(server.url(), settings).enter(redis);
    let report = bench.run(|contender, scene| eprintln!("{scene}: {contender}")).await?;
    println!("{about}\n{report}");
    Ok(())
}

struct Redis {
    client: Client,
}

impl Redis {
    /// The server's version, and how it keeps its log.
    async fn about(&self) -> Result<String, redis::RedisError> {
        let mut conn = self.client.get_multiplexed_async_connection().await?;
        let info: String = redis::cmd("INFO").arg("all").query_async(&mut conn).await?;
        let lines: Vec<_> = info.lines().filter(|line| ABOUT.iter().any(|name| line.starts_with(name))).collect();
        let appended: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("appendfsync").query_async(&mut conn).await?;
        Ok(format!("- {}, {}", lines.join(", "), appended.join(":")))
    }
}

impl Contender for Redis {
    type Session = Calls;

    fn name(&self) -> &'static str {
        "redis script"
    }

    fn enters(&self, scene: &Scene) -> bool {
        scene.workload != Workload::Three
    }

    async fn open(&self, scene: Scene) -> Result<Calls, Fault> {
        let conn = self.client.get_multiplexed_async_connection().await?;
        let calls = Calls { scene, conn, script: Script::new(TOKEN_BUCKET) };
        if !scene.workload.is_granted() {
            let _: () = calls.conn.clone().del(calls.key(0)).await?;
            calls.decide(0).await?;
        }
        Ok(calls)
    }
}

struct Calls {
    scene: Scene,
    conn: MultiplexedConnection,
    script: Script,
}

impl Calls {
    fn key(&self, user: u32) -> String {
        match self.scene.workload {
            Workload::Uniform | Workload::Zipf | Workload::Three => format!("tollgate-bench:user:{user}"),
            Workload::Hot => "tollgate-bench:total".to_owned(),
            Workload::Refused => "tollgate-bench:exhausted".to_owned(),
        }
    }
}

impl Session for Calls {
    async fn decide(&self, user: u32) -> Result<bool, Fault> {
        let (capacity, per_second) = if self.scene.workload.is_granted() { (1e9, 1e9) } else { (1.0, 1e-11) };
        let mut call = self.script.key(self.key(user));
        let granted: u8 = call.arg(capacity).arg(per_second).arg(1).invoke_async(&mut self.conn.clone()).await?;
        Ok(granted == 1)
    }

    async fn close(&self) {}
}

/// As it is usually written: in floats, by the clock of Redis, and with keys that expire, here after ten minutes.
const TOKEN_BUCKET: &str = "
    local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local time = redis.call('TIME')
    local now = time[1] + time[2] / 1e6
    local row = redis.call('HMGET', KEYS[1], 'tokens', 'at')
    local tokens, at = tonumber(row[1]) or capacity, tonumber(row[2]) or now
    tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)
    local granted = tokens >= cost
    if granted then
        tokens = tokens - cost
    end
    redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
    redis.call('PEXPIRE', KEYS[1], 600000)
    return granted and 1 or 0";

const ABOUT: [&str; 2] = ["redis_version:", "aof_enabled:"];
