//! The command describes itself: completions for shells, and manual pages.

use std::path::PathBuf;

use clap_complete::Shell;

use crate::error::CommandError;
use crate::output::print;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that the script is for.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write the pages of all subcommands into this directory. Without this option, the command prints the first page.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tollgate", &mut script);
    print(&String::from_utf8(script)?)
}

pub(crate) fn man(args: &ManArgs, command: clap::Command) -> Result<(), CommandError> {
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)?;
        return Ok(clap_mangen::generate_to(command, directory)?);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    print(&String::from_utf8(page)?)
}
