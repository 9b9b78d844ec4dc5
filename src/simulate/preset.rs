use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rule::Rule;
use super::scene::{Finding, Scene, SimulateError, on_traffic};
use super::simulation::{Retry, Simulation};
use super::traffic::Traffic;
use crate::limit::Limit;
use crate::{HOUR, MINUTE, SECOND};

/// A worked example with known figures: traffic, and the limits that are tried on it side by side.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    name: &'static str,
    summary: &'static str,
    traffic: fn() -> Vec<Traffic>,
    scenes: fn() -> Vec<Scene>,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self {
            name: "dashboard",
            summary: "a dashboard fires ten calls at once every two seconds: capacity 10 against capacity 5",
            traffic: || vec![Traffic::burst(10, 2 * SECOND).lasting(10 * SECOND).key("dashboard")],
            scenes: || {
                let limit = Limit::token_bucket("dashboard", 5, SECOND);
                vec![
                    scene("capacity 10", [Rule::each(limit.clone().capacity(10))]),
                    scene("capacity 5", [Rule::each(limit)]),
                ]
            },
        },
        Self {
            name: "flood",
            summary: "fifty calls at once, then sixty a second, on a bucket of 50 refilled at 10 a second: then one in six",
            traffic: || {
                vec![Traffic::burst(50, MINUTE).lasting(SECOND), Traffic::constant(60, SECOND).lasting(10 * SECOND)]
            },
            scenes: || vec![scene("50 and 10 a second", [Rule::each(API)])],
        },
        Self {
            name: "retries",
            summary: "the same bucket, asked 12 times a second: clients that come back when told, or each second, or never",
            traffic: || vec![Traffic::constant(12, SECOND).lasting(MINUTE)],
            scenes: || {
                let simulation = || Simulation::new([Rule::each(API)]).patience(10 * SECOND);
                vec![
                    Scene::new("never", simulation()),
                    Scene::new("when told", simulation().retrying(Retry::WhenTold)),
                    Scene::new("each second", simulation().retrying(Retry::Every(SECOND))),
                ]
            },
        },
        Self {
            name: "burst_credit",
            summary: "five minutes of unused rate saved up (10 a second, capacity 3000), spent at 40 a second: gone in 100 s",
            traffic: || vec![Traffic::constant(40, SECOND).lasting(3 * MINUTE)],
            scenes: || {
                let limit = Limit::token_bucket("burst_credit", 10, SECOND).capacity(3_000);
                vec![scene("five minutes saved", [Rule::each(limit)])]
            },
        },
        Self {
            name: "window_edge",
            summary: "a hundred calls just before a minute ends and a hundred just after: a window against a bucket",
            traffic: || {
                let hundred = || Traffic::burst(100, HOUR).lasting(Duration::from_millis(29_500));
                vec![hundred().from(Duration::from_millis(59_500)), hundred().from(Duration::from_millis(60_500))]
            },
            scenes: || {
                let window = Limit::fixed_window("window", 100, MINUTE).start(Duration::ZERO);
                let bucket = Limit::token_bucket("bucket", 100, MINUTE);
                vec![scene("fixed window", [Rule::each(window)]), scene("token bucket", [Rule::each(bucket)])]
            },
        },
        Self {
            name: "queue",
            summary: "thirty jobs at once into a queue of one a second: capacity 0 spaces them, capacity 5 starts five at once",
            traffic: || vec![Traffic::burst(30, HOUR).lasting(MINUTE).key("jobs")],
            scenes: || {
                let queue = |capacity| {
                    let limit = Limit::token_bucket("queue", 1, SECOND).capacity(capacity).unbounded_reservations();
                    Simulation::new([Rule::each(limit)]).reserving()
                };
                vec![Scene::new("capacity 0", queue(0)), Scene::new("capacity 5", queue(5))]
            },
        },
        Self {
            name: "noisy_neighbour",
            summary: "one of five tenants floods: a limit for all together alone, and one for each tenant beside it",
            traffic: || {
                vec![Traffic::poisson(5, SECOND).clients(4).key("quiet"), Traffic::constant(200, SECOND).key("noisy")]
            },
            scenes: || {
                let total = || Rule::global(Limit::token_bucket("total", 60, SECOND));
                let each = || Rule::each(Limit::token_bucket("per_tenant", 20, SECOND));
                vec![scene("all together", [total()]), scene("and each tenant", [each(), total()])]
            },
        },
        Self {
            name: "day",
            summary: "a day of 20 calls a minute on average, nine times as many at noon as at midnight: capacity 10, 20 and 40",
            traffic: || vec![Traffic::diurnal(20, MINUTE)],
            scenes: || {
                let scene_of = |capacity: u64| {
                    let limit = Limit::token_bucket("day", 30, MINUTE).capacity(capacity);
                    scene(&format!("capacity {capacity}"), [Rule::each(limit)])
                };
                [10, 20, 40].map(scene_of).into()
            },
        },
    ];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// What happens in it, in a line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        self.summary
    }

    /// The calls that are made.
    #[must_use]
    pub fn traffic(self) -> Vec<Traffic> {
        (self.traffic)()
    }

    /// What is tried on them.
    #[must_use]
    pub fn scenes(self) -> Vec<Scene> {
        (self.scenes)()
    }

    /// Tries it.
    ///
    /// # Errors
    ///
    /// None that a test has met; else as [`on_traffic`].
    pub fn run(self, seed: u64) -> Result<Vec<Finding>, SimulateError> {
        on_traffic(&self.scenes(), &self.traffic(), seed)
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let names = || Self::ALL.map(|preset| preset.name).join(", ");
        let found = Self::ALL.into_iter().find(|preset| preset.name == name);
        found.ok_or_else(|| UnknownPreset { name: name.to_owned(), names: names() })
    }
}

/// A name that no preset has.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there is no preset {name:?} (there are {names})")]
pub struct UnknownPreset {
    name: String,
    names: String,
}

fn scene<const N: usize>(label: &str, rules: [Rule; N]) -> Scene {
    Scene::new(label, Simulation::new(rules))
}

/// Fifty at once after a rest, and ten a second.
const API: Limit = Limit::token_bucket("api", 10, SECOND).capacity(50);
