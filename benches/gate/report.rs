//! The result of a run.

use std::fmt;
use std::fs;
use std::iter;
use std::thread::available_parallelism;

use sqlx::PgConnection;
use tollgate::Storage;

use crate::contender::{Contender, Servers};
use crate::elsewhere;
use crate::plot::{self, Line, Panel};
use crate::scene::{Scene, Workload};
use crate::support::Fault;
use crate::table::{Table, number};
use crate::target;
use crate::turn::Figures;

pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// How many turns there were, and how long.
    pub(crate) turns: String,
    pub(crate) rows: Vec<Row>,
}

/// A contender in a scene.
pub(crate) struct Row {
    pub(crate) scene: Scene,
    pub(crate) contender: Contender,
    pub(crate) figures: Figures,
}

impl Report {
    /// The figures of a contender in a scene, if they were measured.
    pub(crate) fn figures(&self, scene: Scene, contender: Contender) -> Option<&Figures> {
        let row = self.rows.iter().find(|row| row.scene == scene && row.contender == contender);
        row.map(|row| &row.figures)
    }

    /// docs/benchmarks.md, as these arguments make it: of the whole report, what most readers look for.
    pub(crate) fn document(&self, args: &[String]) -> String {
        let command: Vec<_> = ["./dev bench"].into_iter().chain(args.iter().map(String::as_str)).collect();
        include_str!("document.txt")
            .replace("{command}", &[command.join(" "), "--write".to_owned()].join(" "))
            .replace("{machine}\n", &format!("{}- turns of each: {}\n", self.machine, self.turns))
            .replace("{picture}\n", if self.plot().is_some() { PICTURE } else { "\n" })
            .replace("{rates}", &self.overview(|figures| figures.per_second).to_string())
            .replace("{latencies}", &self.overview(|figures| figures.p99_us).to_string())
    }

    /// A line for each scene of 64 callers, or where there is none for the one of most callers.
    fn overview(&self, figure: fn(&Figures) -> f64) -> Table {
        let kind = |row: &Row| (row.scene.workload, row.scene.storage);
        let scenes = self.rows.chunk_by(|one, next| kind(one) == kind(next)).filter_map(|rows| {
            let scenes = || rows.iter().map(|row| row.scene);
            scenes().find(|scene| scene.callers == 64).or_else(|| scenes().next_back())
        });
        let shown = scenes.filter(|scene| OVERVIEW.contains(&scene.workload)).map(|scene| {
            let figures = COLUMNS.map(|contender| number(self.figures(scene, contender).map(figure)));
            iter::once(scene.to_string()).chain(figures).collect()
        });
        let headings: Vec<_> = iter::once("scene").chain(COLUMNS.map(Contender::name)).collect();
        Table::new(&headings, 1, shown)
    }

    /// docs/benchmarks.svg, if there is something to compare.
    pub(crate) fn plot(&self) -> Option<String> {
        let line = |workload, (name, tone, contender, storage, redis)| {
            let ratio = |row: &Row| {
                let redis = self.figures(row.scene, redis)?;
                Some((u32::try_from(row.scene.callers).ok()?, row.figures.per_second / redis.per_second))
            };
            let is_it = |row: &&Row| {
                row.contender == contender && (row.scene.workload, row.scene.storage) == (workload, storage)
            };
            Line { name, tone, points: self.rows.iter().filter(is_it).filter_map(ratio).collect() }
        };
        let panel = |title, workload| Panel { title, lines: LINES.map(|shown| line(workload, shown)).into() };
        plot::svg(&[panel("10 000 keys", Workload::Uniform), panel("one hot key", Workload::Hot)])
    }

    /// The rows of one workload and storage: each contender with all its numbers of callers.
    fn table(&self, rows: &[Row]) -> Table {
        let mut ordered: Vec<_> = rows.iter().collect();
        ordered.sort_by_key(|row| Contender::ALL.iter().position(|contender| *contender == row.contender));
        let line = |row: &Row| {
            let figures = &row.figures;
            let over = |baseline| {
                number(self.figures(row.scene, baseline).map(|baseline| figures.per_second / baseline.per_second))
            };
            // PostgreSQL's counters also count what is not the contender's.
            let is_alone = !row.contender.is_redis() && figures.others_per_second.is_none();
            let (wal_bytes, batch) = if is_alone { (Some(figures.wal_bytes), figures.batch) } else { (None, None) };
            vec![
                row.contender.name().to_owned(),
                row.scene.callers.to_string(),
                number(Some(figures.per_second)),
                over(Contender::Transaction),
                over(Contender::Update),
                over(Contender::Counter),
                over(Contender::Redis),
                over(Contender::RedisSynced),
                number(Some(figures.p50_us)),
                number(Some(figures.p99_us)),
                number(figures.p999_us),
                number(figures.server_us),
                number(figures.client_us),
                number(batch),
                number(wal_bytes),
                number(figures.others_per_second),
            ]
        };
        Table::new(&HEADINGS, 1, ordered.into_iter().map(line).chain(elsewhere::lines(rows)))
    }
}

impl fmt::Display for Report {
    /// Markdown: the machine, the targets, and a table for each workload and storage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}- turns of each: {}; medians count", self.machine, self.turns)?;
        if let Some(targets) = target::table(self) {
            write!(f, "\n## Targets\n\n{targets}")?;
        }
        writeln!(f, "\n## Figures")?;
        let kind = |row: &Row| (row.scene.workload, row.scene.storage);
        for rows in self.rows.chunk_by(|one, next| kind(one) == kind(next)) {
            let Scene { workload, storage, .. } = rows[0].scene;
            write!(f, "\n### {workload}, {storage}\n\n{}", self.table(rows))?;
        }
        Ok(())
    }
}

/// The machine of the run. Absolute figures mean nothing without it.
pub(crate) struct Machine {
    /// Processors that this program may use. The servers use the same ones.
    pub(crate) cores: u32,
    /// Lines that describe the rest.
    about: Vec<String>,
}

impl Machine {
    pub(crate) async fn read(conn: &mut PgConnection, servers: &Servers) -> Result<Self, Fault> {
        let cores = available_parallelism()?.get().try_into()?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
        let mut about = vec![
            format!("machine: {cores} cores, {}; kernel {}", cpu.unwrap_or("unknown processor"), kernel.trim()),
            sqlx::query_scalar(ABOUT_POSTGRESQL).fetch_one(conn).await?,
        ];
        for redis in [&servers.redis, &servers.redis_synced].into_iter().flatten() {
            about.push(redis.about().await?);
        }
        about.push(format!("tollgate {}", env!("CARGO_PKG_VERSION")));
        Ok(Self { cores, about })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.iter().try_for_each(|line| writeln!(f, "- {line}"))
    }
}

/// The version, and the settings that matter most.
const ABOUT_POSTGRESQL: &str = "
    select 'PostgreSQL ' || current_setting('server_version') || ': '
        || string_agg(name || ' = ' || current_setting(name), ', '
        order by name)
      from pg_settings
     where name in ('autovacuum', 'fsync', 'full_page_writes', 'max_wal_size', 'shared_buffers', 'synchronous_commit',
                    'wal_level', 'wal_sync_method')";

const PICTURE: &str = "
![Decisions for each one of Redis, by callers: of a gate over 10 000 keys and on one hot key, and of a transaction for
each call.](benchmarks.svg)

";
/// What docs/benchmarks.md shows of the report.
const OVERVIEW: [Workload; 5] = [Workload::One, Workload::Uniform, Workload::Hot, Workload::Far, Workload::Three];
const COLUMNS: [Contender; 7] = [
    Contender::Gate,
    Contender::GateAhead,
    Contender::Transaction,
    Contender::Update,
    Contender::Counter,
    Contender::Redis,
    Contender::RedisSynced,
];
/// The lines of the picture: a name, its class in the style, the contender, its storage, and the Redis beside it.
const LINES: [(&str, &str, Contender, Storage, Contender); 3] = [
    ("a gate", "one", Contender::Gate, Storage::Ephemeral, Contender::Redis),
    ("a gate on durable rows × a Redis that syncs", "two", Contender::Gate, Storage::Durable, Contender::RedisSynced),
    ("a transaction for each call", "three", Contender::Transaction, Storage::Ephemeral, Contender::Redis),
];

const HEADINGS: [&str; 16] = [
    "contender",
    "callers",
    "decisions/s",
    "× (a)",
    "× (b)",
    "× (c)",
    "× redis",
    "× synced",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "server µs",
    "client µs",
    "batch",
    "WAL bytes",
    "others/s",
];
