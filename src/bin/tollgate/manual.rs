//! The command describes itself: completions for shells, and man pages.

use std::io::Write;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::error::CommandError;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write the pages of all subcommands into this directory, instead of the first page to standard output.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), CommandError> {
    // Into memory first: the generator panics where the reader of the output is gone.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tollgate", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

pub(crate) fn man(args: &ManArgs) -> Result<(), CommandError> {
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)?;
        return Ok(clap_mangen::generate_to(Args::command(), directory)?);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command()).render(&mut page)?;
    Ok(std::io::stdout().write_all(&page)?)
}
