//! The command, through a PgBouncer in transaction mode.

use super::{run, text, tollgate};
use crate::pgbouncer::{self, PgBouncer};
use crate::world::World;

#[tokio::test]
async fn the_command_migrates_through_a_pooler() {
    if pgbouncer::is_missing() {
        return;
    }
    let world = World::unmigrated().await;
    let pooler = PgBouncer::start(&world.direct_url(), 1);
    for (verb, said) in [
        ("up", "applied V1__"),
        ("up", "nothing to do"),
        ("status", "applied  V1__"),
        ("validate", "the schema is what"),
    ] {
        let url = pooler.url(world.name());
        let output = run(tollgate().args(["migrate", verb, "--database-url", &url]));
        let told = text(&output.stdout);
        assert!(told.starts_with(said), "{told}{}", text(&output.stderr));
    }
}
