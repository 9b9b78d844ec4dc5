//! Facts about the pure part: no database, no clock, any feature set.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calendar;
mod calls;
mod changed;
mod conformance;
mod documents;
mod first_of;
mod leases;
#[cfg(feature = "limits-file")]
mod limits_file;
mod model;
mod noise;
#[cfg(feature = "metrics")]
mod ops;
mod options;
mod overrides;
mod parts;
mod periods;
mod prefetch;
mod properties;
mod regressions;
mod shards;
mod shares;
mod sliding;
mod slowed_rate;
mod split;
mod standing;
mod statements;
mod story;
mod thresholds;
mod values;
mod world;
