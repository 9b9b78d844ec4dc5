//! A gateway to a language model. An organisation has bought tokens, and each of its teams and users has a budget of
//! its own: a request is charged to all three. The gateway charges an estimate before the answer streams, counts the
//! tokens that stream, and settles at their number when the stream ends. Clients that die in mid-stream settle nothing:
//! the tokens that they have not reported come back. At the end the books balance.
//!
//! `cargo run --example model_gateway`

use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{Call, Gate, Limit, Request, Tokens, migrate};
use tollgate_embedded::Server;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The tokens that the organisation has bought.
const ORG: Limit = Limit::wallet("org_tokens");
/// The budget of each team and of each user in a month.
const TEAM: Limit = Limit::monthly("team_tokens", TEAM_BUDGET);
const USER: Limit = Limit::monthly("user_tokens", USER_BUDGET);

const BOUGHT: u64 = 1_000_000;
const TEAM_BUDGET: u64 = 400_000;
const USER_BUDGET: u64 = 50_000;

/// Longer than any answer streams. The estimate of a client that died comes back after this long.
const LONGEST: Duration = Duration::from_secs(5);
const ESTIMATE: u32 = 2_000;
const CHUNK: u64 = 100;

const CLIENTS: u64 = 200;
const TEAMS: u64 = 4;
const USERS: u64 = 20;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let gate = Gate::new(pool);
    // A payment that is reported twice is credited once.
    for _ in 0..2 {
        gate.credit(ORG.key("acme").cost(BOUGHT).once("payment 17")).await?;
    }

    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(answer(gate.clone(), client));
    }
    let mut bills = Vec::new();
    while let Some(bill) = clients.join_next().await {
        bills.push(bill??);
    }

    println!("acme: {}", balanced(&gate, ORG.key("acme"), BOUGHT, bills.iter()).await?);
    for team in 0..TEAMS {
        let of_team = bills.iter().filter(|bill| bill.client % TEAMS == team);
        println!("team {team}: {}", balanced(&gate, TEAM.key(team), TEAM_BUDGET, of_team).await?);
    }
    for user in 0..USERS {
        let of_user = bills.iter().filter(|bill| bill.client % USERS == user);
        balanced(&gate, USER.key(user), USER_BUDGET, of_user).await?;
    }
    println!("the books of {USERS} users balance, too");
    Ok(())
}

/// The bill of one client.
struct Bill {
    client: u64,
    /// `None` if it died.
    settled: Option<u64>,
    reported: u64,
}

/// Streams one answer; or a part of it, to one client in ten.
async fn answer(gate: Gate, client: u64) -> Result<Bill, Error> {
    let asked = [ORG.key("acme"), TEAM.key(client % TEAMS), USER.key(client % USERS)];
    let estimate = Call::from(asked.map(|request| request.cost(ESTIMATE)));
    let stream = gate.stream(estimate.lapses_after(LONGEST)).await?.granted()?;
    // Some answers are longer than the estimate.
    let (chunks, mut reported) = (10 + client % 23, 0);
    for chunk in 1..=chunks {
        // Stands in for the model.
        tokio::time::sleep(Duration::from_millis(5)).await;
        stream.add(Tokens::try_from(CHUNK)?);
        if chunk % 4 == 0 {
            stream.report().await?;
            reported = chunk * CHUNK;
        }
        if client / TEAMS % 10 == 3 && chunk == chunks / 2 {
            // It dies, as with a process that is killed: nothing is settled. To drop the stream would settle it.
            std::mem::forget(stream);
            return Ok(Bill { client, settled: None, reported });
        }
    }
    stream.settle().await?;
    Ok(Bill { client, settled: Some(chunks * CHUNK), reported })
}

/// Waits until a budget has what its bills leave of it: the estimates of those who died come back by themselves.
async fn balanced(
    gate: &Gate,
    budget: Request,
    before: u64,
    bills: impl Iterator<Item = &Bill>,
) -> Result<String, Error> {
    let (mut settled, mut reported) = (0, 0);
    for bill in bills {
        match bill.settled {
            Some(used) => settled += used,
            None => reported += bill.reported,
        }
    }
    let left = Tokens::try_from(before - settled - reported)?;
    let comes_back = async {
        while gate.balance(budget.clone()).await?.remaining != left {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, Error>(())
    };
    tokio::time::timeout(2 * LONGEST, comes_back).await.map_err(|_| "the books do not balance")??;
    Ok(format!("{before} - {settled} settled - {reported} reported by the dead = {left} left"))
}
