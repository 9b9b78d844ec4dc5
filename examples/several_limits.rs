//! Three limits in one call, per user, per tenant and global: either all are charged, or none is.
//!
//! `cargo run --example several_limits`

use sqlx::PgPool;
use tollgate::{Decision, HOUR, Limit, Limiter, MINUTE, SECOND, migrate};
use tollgate_embedded::Server;

const PER_USER: Limit = Limit::token_bucket("per_user", 5, MINUTE);
const PER_TENANT: Limit = Limit::fixed_window("per_tenant", 8, HOUR);
/// Ephemeral: after a crash, the traffic of the last second does not matter.
const ALL_TRAFFIC: Limit = Limit::token_bucket("all_traffic", 1_000, SECOND).ephemeral();

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;

    let limiter = Limiter::new();
    for (user, calls) in [("ada", 6), ("grace", 4)] {
        for call in 1..=calls {
            let mut tx = pool.begin().await?;
            let limits = [PER_USER.key(("acme", user)), PER_TENANT.key("acme"), ALL_TRAFFIC.global()];
            match limiter.consume(&mut tx, limits).await? {
                Decision::Granted(grant) => println!("{user} call {call}: granted, at least {} left", grant.remaining),
                Decision::Denied(denied) => println!("{user} call {call}: {denied}"),
            }
            tx.commit().await?;
        }
    }

    // Ada's sixth call was refused by her own limit, so the tenant was not charged for it: 5 + 3 make 8.
    let mut conn = pool.acquire().await?;
    let tenant = limiter.balance(&mut conn, PER_TENANT.key("acme")).await?;
    println!("the tenant has {} of {} left", tenant.remaining, tenant.capacity);
    assert!(!tenant.remaining.is_negative());
    Ok(())
}
