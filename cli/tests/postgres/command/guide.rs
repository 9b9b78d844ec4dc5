//! The first lines of `docs/sql.md`, as a reader types them.

use std::env::{join_paths, split_paths, var_os};
use std::path::Path;
use std::process::Command;

use tollgate_embedded::find_programs;

use super::{run, stdout};
use crate::world::World;

#[tokio::test]
async fn the_first_lines_of_the_guide_to_sql_come_to_a_decision() {
    let world = World::unmigrated().await;
    let guide = include_str!("../../../../docs/sql.md");
    let (_, rest) = guide.split_once("```sh\n").unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    let command = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap().to_path_buf();
    let others = var_os("PATH").unwrap();
    let path = join_paths([command, find_programs().unwrap()].into_iter().chain(split_paths(&others))).unwrap();
    let told = run(Command::new("sh")
        .args(["-euc", lines])
        .env("PATH", path)
        .env("DATABASE_URL", world.command_url())
        .env("PGOPTIONS", "--client-min-messages=warning"));
    assert!(stdout(&told).contains(" t       | 99.000000"), "{}", stdout(&told));
}
