//! What guides show, as a reader types it.

use std::env::{join_paths, split_paths, var_os};
use std::path::Path;
use std::process::Command;

use sqlx::PgPool;
use tollgate::{HOUR, Limit, MINUTE, Tollgate};
use tollgate_embedded::find_programs;

use super::{run, stdout, text};
use crate::ROOT;
use crate::world::{ON_CALL, World};

const MESSAGES: Limit = Limit::token_bucket("messages", 10, MINUTE).capacity(20);
const GUESSES: Limit = Limit::stepped_bucket("guesses_of_ip", 30, HOUR);
const BILL: Limit = Limit::meter("model_bill");

#[tokio::test]
async fn the_page_of_the_service_shows_what_the_command_prints() {
    let world = World::new().await;
    define(&world, &[&MESSAGES, &GUESSES, &BILL]).await;
    let used = [
        MESSAGES.key((1, 7)).cost(20),
        MESSAGES.key((1, 3)).cost(4),
        BILL.key(("2026-11", 1)).cost(41_200),
        BILL.key(("2026-11", 2)).cost(900),
    ];
    world.gate().consume(used).await.unwrap().granted().unwrap();
    expect_shown(&world, "docs/service.md", "tollgate inspect");
}

const SEND_MESSAGE: Limit = Limit::token_bucket("send_message", 10, MINUTE).capacity(20);

#[tokio::test]
async fn the_page_for_operators_shows_what_the_command_prints() {
    let world = World::new().await;
    define(&world, &[&SEND_MESSAGE]).await;
    for (key, used) in [("user:42", 25), ("user:7", 16)] {
        world.gate().debit(SEND_MESSAGE.key(key).cost(used)).await.unwrap();
    }
    expect_shown(&world, "docs/operating.md", "tollgate inspect");

    let set = |more: &str| format!("tollgate override set send_message ada --reason {more}; ");
    let contract = set("'contract of 2026' --rate 5000 --label contract --by app");
    stdout(&run(&mut shell(&world, &(contract + &set("'ticket 4711' --rate 500 --yes")))));
    world.gate().consume(SEND_MESSAGE.key("ada").cost(10)).await.unwrap().granted().unwrap();
    expect_shown(&world, "docs/operating.md", "tollgate override set");
}

/// Fills the table of definitions as a service does whose role may.
async fn define(world: &World, limits: &[&Limit]) {
    let pool = PgPool::connect_lazy(&world.admin_url()).unwrap();
    Tollgate::builder(pool).limits(limits.iter().copied()).start().await.unwrap().stop().await;
}

/// Runs the commands of the block of a page that begins so, and compares what they print, whatever the spans, instants
/// and fractions are.
fn expect_shown(world: &World, page: &str, block: &str) {
    let path = Path::new(ROOT).join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, rest) = text.split_once(&format!("```console\n$ {block}")).expect(block);
    let shown = format!("$ {block}{}", rest.split("```").next().unwrap());
    let commands = shown.lines().filter_map(|line| line.strip_prefix("$ "));
    let printed = commands.map(|line| format!("$ {line}\n{}", printed(world, line))).collect::<Vec<_>>().concat();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text.replace(&shown, &printed)).unwrap();
    } else {
        assert_eq!(shape(&printed), shape(&shown), "{page} (UPDATE_SNAPSHOTS=1 writes what is printed)\n{printed}");
    }
}

fn printed(world: &World, line: &str) -> String {
    text(&run(&mut shell(world, &format!("exec 2>&1; {line}"))).stdout).replace(ON_CALL, "on_call")
}

/// A text without the spans, instants and fractions in it.
fn shape(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let is_exact = !word.contains(|letter: char| letter.is_ascii_digit()) || word.parse::<u64>().is_ok();
        if is_exact { word.to_owned() } else { word.replace(|letter: char| letter.is_alphanumeric(), "") }
    };
    text.split_whitespace().map(word).filter(|word| !word.is_empty()).collect()
}

/// A shell in which the command and PostgreSQL's programs are found.
fn shell(world: &World, lines: &str) -> Command {
    let command = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap().to_path_buf();
    let others = var_os("PATH").unwrap();
    let path = join_paths([command, find_programs().unwrap()].into_iter().chain(split_paths(&others))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-euc", lines]).env("PATH", path).env("DATABASE_URL", world.command_url());
    shell.env_remove("TOLLGATE_LIMITS");
    shell
}

#[tokio::test]
async fn the_first_lines_of_the_guide_to_sql_come_to_a_decision() {
    let world = World::unmigrated().await;
    let guide = include_str!("../../../../docs/sql.md");
    let (_, rest) = guide.split_once("```sh\n").unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    let told = run(shell(&world, lines).env("PGOPTIONS", "--client-min-messages=warning"));
    assert!(stdout(&told).contains(" t       | 99.000000"), "{}", stdout(&told));
}
