//! Failed log-ins count, and a successful one forgets those before it. Each guess is charged before the password is
//! verified, and a right one fills the account's bucket again. So guesses that arrive at the same time cannot all pass
//! on one token. A failure must count even if the handler's own transaction rolls back, so a gate decides, in
//! transactions of its own.
//!
//! `cargo run --example failed_logins`

use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{Decision, Gate, Limit, migrate};
use tollgate_embedded::Server;

/// Three guesses at once, and three more each quarter of an hour.
const FAILED_LOGINS: Limit = Limit::stepped_bucket("failed_logins", 3, Duration::from_mins(15));

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    let gate = Gate::new(pool);

    // A right one after two wrong ones: neither counts against her later.
    let mut answers = Vec::new();
    for password in ["1234", "letmein", "correct horse", "1234", "letmein", "hunter2", "correct horse"] {
        let answer = log_in(&gate, "ada", password).await?;
        println!("ada, {password:?}: {answer}");
        answers.push(answer);
    }
    let [.., before_last, last] = answers.as_slice() else { unreachable!("there are seven") };
    assert_eq!((answers[2].as_str(), before_last.as_str()), ("welcome", "wrong; guesses left: 0"));
    assert!(last.starts_with("locked"), "whether it was right is not told");
    // Support lifts the lock.
    gate.reset(FAILED_LOGINS.key("ada")).await?;
    let answer = log_in(&gate, "ada", "correct horse").await?;
    println!("ada, after a reset: {answer}");
    assert_eq!(answer, "welcome");

    let mut guesses = JoinSet::new();
    for guess in 0..2_000 {
        let gate = gate.clone();
        guesses.spawn(async move { log_in(&gate, "grace", &format!("guess {guess}")).await });
    }
    let answers = guesses.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let verified = answers.iter().filter(|answer| answer.starts_with("wrong")).count();
    println!("grace, two thousand guesses at the same time: {verified} are verified");
    assert_eq!(verified, 3);
    Ok(())
}

async fn log_in(gate: &Gate, user: &str, password: &str) -> Result<String, tollgate::Error> {
    // A refused guess is not verified, so a locked-out client does not learn whether it was right.
    let grant = match gate.consume(FAILED_LOGINS.key(user)).await? {
        Decision::Granted(grant) => grant,
        Decision::Denied(denied) => return Ok(format!("locked: {denied}")),
    };
    if password != "correct horse" {
        return Ok(format!("wrong; guesses left: {}", grant.remaining));
    }
    // This gives back her own guess and the wrong ones before it. A limit by address must not be reset here: somebody
    // with an account would log in to it, and guess on.
    gate.reset(FAILED_LOGINS.key(user)).await?;
    Ok("welcome".to_owned())
}
