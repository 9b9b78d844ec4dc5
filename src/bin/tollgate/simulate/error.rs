use std::io;
use std::path::PathBuf;

use tollgate::simulate::SimulateError;

use crate::limits_file::LimitsFileError;

/// Why nothing was simulated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulateFault {
    #[error("{0}")]
    Limits(#[from] LimitsFileError),
    #[error(
        "no limit is given (pass --limit 'token_bucket rate=10 per=1m capacity=20', or --preset, see --list-presets)"
    )]
    NoLimit,
    #[error(
        "no traffic is given (pass --traffic 'poisson rate=12 per=1s for=5m', --trace FILE, or --preset, see --list-presets)"
    )]
    NoTraffic,
    #[error("could not draw {}: {source}", file.display())]
    Picture { file: PathBuf, source: io::Error },
    #[error("{0}")]
    Simulate(#[from] SimulateError),
    #[error("{}: {source}", file.display())]
    Trace { file: PathBuf, source: SimulateError },
    #[error("could not open {}: {source}", file.display())]
    TraceFile { file: PathBuf, source: io::Error },
}
