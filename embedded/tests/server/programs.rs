//! The programs of PostgreSQL, and where they are found.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tollgate_embedded::find_programs;

use crate::{Owner, Scratch, query_at};

#[test]
fn a_wrong_pg_bin_is_named_and_not_ignored() {
    let owner = Owner::start("fail", |command| {
        command.env("PG_BIN", "/nowhere");
    });
    assert_eq!(owner.finish(), r#"WrongPgBin { directory: "/nowhere" }"#);
}

#[test]
fn a_right_pg_bin_decides() {
    let links = Scratch::new("bin");
    for name in PROGRAMS {
        let program = find_programs().unwrap().join(name);
        symlink(program, links.path.join(name)).unwrap();
    }
    let owner = Owner::start("hold", |command| {
        command.env("PG_BIN", &links.path).env("PATH", "/usr/bin:/bin");
    });
    assert_eq!(query_at(&owner.url(), "select 1").unwrap(), "1");
}

#[test]
fn links_lead_to_where_all_programs_are() {
    let place = Scratch::new("linked");
    let (real, links) = (place.path.join("18/bin"), place.path.join("links"));
    install(&real);
    fs::create_dir(&links).unwrap();
    for name in PROGRAMS {
        symlink(real.join(name), links.join(name)).unwrap();
    }
    assert_eq!(found_at(&links), format!("Ok({:?})", real.canonicalize().unwrap()));
}

#[test]
fn wrappers_of_one_program_elsewhere_stay_where_they_are() {
    let place = Scratch::new("wrapped");
    let (bin, elsewhere) = (place.path.join("bin"), place.path.join("initdb"));
    install(&bin);
    fs::rename(bin.join("initdb"), &elsewhere).unwrap();
    symlink(&elsewhere, bin.join("initdb")).unwrap();
    assert_eq!(found_at(&bin), format!("Ok({:?})", bin.canonicalize().unwrap()));
}

#[test]
fn a_client_alone_does_not_count() {
    let place = Scratch::new("client");
    fs::write(place.path.join("initdb"), "").unwrap();
    fs::write(place.path.join("postgres"), "").unwrap();
    assert!(found_at(&place.path).starts_with("Err(WrongPgBin"));
}

#[test]
fn programs_closed_to_that_user_are_an_error_that_says_so() {
    let closed = Scratch::new("closed");
    if closed.owner() != 0 {
        return;
    }
    for name in PROGRAMS {
        fs::write(closed.path.join(name), "").unwrap();
    }
    let owner = Owner::start("fail", |command| {
        command.env("PG_BIN", &closed.path);
    });
    let answer = owner.finish();
    assert!(answer.starts_with("ProgramsClosed"), "{answer}");
}

/// The programs that an owner finds if `PG_BIN` is this directory.
fn found_at(directory: &Path) -> String {
    let mut owner = Owner::spawn("find", |command| {
        command.env("PG_BIN", directory);
    });
    owner.line("found: ")
}

fn install(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for name in PROGRAMS {
        fs::write(directory.join(name), "").unwrap();
    }
}

/// The programs that the launcher needs.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];
