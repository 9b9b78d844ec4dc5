//! The keys that a gate has refused most.

use fastrand::Rng;
use tollgate::Limit;

use crate::gate::stage::patient;
use crate::world::World;

/// Ten keys are counted; the three that are refused most are among them, with counts that are never too low.
#[tokio::test]
async fn the_keys_refused_most_are_known() {
    let world = World::new().await;
    let one = Limit::token_bucket("one", 1, Limit::MAX_PERIOD);
    let gate = patient(&world.pool).count_refusals(10).build();
    let quiet = patient(&world.pool).build();
    let mut asked = Vec::new();
    for (key, times) in (0..40).map(|key| (key, 1)).chain([(100, 60), (101, 50), (102, 40)]) {
        asked.extend(std::iter::repeat_n(key, times));
    }
    Rng::with_seed(7).shuffle(&mut asked);
    for key in &asked {
        drop(quiet.consume(one.key(*key)).await.unwrap());
        assert!(!gate.consume(one.key(*key)).await.unwrap().is_granted());
    }
    let most = gate.most_refused(100);
    assert_eq!(most.len(), 10);
    assert_eq!(most.iter().map(|refused| refused.times).sum::<u64>(), asked.len() as u64);
    for refused in &most {
        let truly = asked.iter().filter(|key| key.to_string() == refused.key.as_str()).count() as u64;
        assert!((refused.times - refused.excess..=refused.times).contains(&truly), "{refused:?}: {truly}");
    }
    let mut first: Vec<_> = gate.most_refused(3).iter().map(|refused| refused.key.to_string()).collect();
    first.sort();
    assert_eq!(first, ["100", "101", "102"]);
    assert_eq!(quiet.most_refused(1), []);
}
