//! `tollgate limits`: whether a limits file says what it should.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};
use tollgate::{FileFault, FileFaults, Limit, Limits, LimitsError};

use crate::error::CommandError;
use crate::exit::Exit;
use crate::limits_file::describe;
use crate::output::{self, BAD, GOOD, OutputArgs, answered, counted, styled};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Report every fault of a limits file, with its line, its column and what was probably meant. Needs no database.
    ///
    /// Exit status: 0 sound, 1 not.
    Check {
        /// The file: JSON where its name ends in `.json`, else TOML.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(command: LimitsCommand) -> Result<Exit, CommandError> {
    let LimitsCommand::Check { file, output } = command;
    match Limits::from_file(&file) {
        Ok(limits) => answered(sound(output, &file, &limits), Exit::Done),
        Err(LimitsError::Faulty(faults)) => answered(faulty(output, &file, &faults), Exit::Unsound),
        Err(error) => Err(CommandError::Limits(error.into())),
    }
}

fn sound(output: OutputArgs, file: &Path, limits: &Limits) -> Result<(), CommandError> {
    if output.json {
        let limits: Vec<_> = limits.iter().map(Limit::spec).collect();
        return output::json(&json!({ "file": file, "limits": limits, "faults": [] }));
    }
    let mut out = output::out();
    for limit in limits.iter() {
        writeln!(out, "{}", describe(limit))?;
    }
    Ok(writeln!(out, "{}: {}, nothing wrong", styled(GOOD, file.display()), counted(limits.len(), "limit"))?)
}

fn faulty(output: OutputArgs, file: &Path, faults: &FileFaults) -> Result<(), CommandError> {
    if output.json {
        let faults: Vec<_> = faults.iter().map(fault).collect();
        return output::json(&json!({ "file": file, "limits": null, "faults": faults }));
    }
    let mut out = output::out();
    for fault in faults.iter() {
        writeln!(out, "{}:{fault}", styled(BAD, file.display()))?;
    }
    Ok(())
}

fn fault(fault: &FileFault) -> Value {
    json!({
        "line": fault.line,
        "column": fault.column,
        "limit": fault.limit,
        "fault": fault.kind.to_string(),
        "suggestion": fault.suggestion,
    })
}
