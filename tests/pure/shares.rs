//! Guaranteed shares: a tenant within its own rate is never refused because of others, and unused tokens are lent.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Verb};
use tollgate::{Error, Grant, Limit, LimitKind, LimitSpec, Receipt, Request, SECOND, Tokens, first_of};

use crate::story::config;
use crate::world::{World, at, micros, sec, tokens};

fn bucket(name: &str, rate: Tokens, period: Duration, capacity: Tokens) -> Limit {
    LimitSpec::new(name.to_owned(), LimitKind::TokenBucket, rate, period)
        .with(|spec| {
            spec.capacity = Some(capacity);
            spec.max_reserved = tokens(100);
        })
        .try_into()
        .unwrap()
}

/// Tenants with a bucket each, and one that all of them share.
#[derive(Clone, Debug)]
struct Shares {
    own: Vec<Limit>,
    shared: Limit,
    /// The tokens that the shared bucket keeps for them.
    kept: Tokens,
    world: World,
}

impl Shares {
    fn own(&self, tenant: usize) -> Request {
        self.own[tenant].key(format!("tenant-{tenant}"))
    }

    fn call(&self, tenant: usize, cost: Tokens, once: Option<usize>) -> Verb {
        let shared = || self.shared.global().cost(cost);
        let own = self.own(tenant).cost(cost);
        let call = first_of([vec![own, shared()], vec![shared().leaving(self.kept)]]);
        Verb::consume(match once {
            Some(once) => call.once(once).lapses_after(Duration::from_micros(5)),
            None => call,
        })
    }

    /// The receipt, and the alternative that was charged.
    fn ask(&mut self, tenant: usize, cost: Tokens, once: Option<usize>, now: Timestamp) -> Option<(usize, Receipt)> {
        match self.world.call(self.call(tenant, cost, once), now) {
            Ok(Answer::Granted { grant: Grant { alternative, receipt, .. }, .. }) => Some((alternative, receipt)),
            Ok(Answer::Denied(_)) | Err(Error::CostExceedsCapacity { .. }) => None,
            other => panic!("{other:?}"),
        }
    }

    fn held(&self, request: Request, now: Timestamp) -> i64 {
        self.world.look(request, now).remaining.micros()
    }

    /// How far the shared bucket is below the sum of the own ones.
    fn gap(&self, now: Timestamp) -> i64 {
        let own = (0..self.own.len()).map(|tenant| self.held(self.own(tenant), now).max(0));
        own.sum::<i64>() - self.held(self.shared.global(), now)
    }
}

#[derive(Clone, Debug)]
enum Move {
    Wait(i64),
    Ask {
        tenant: usize,
        cost: i64,
        lapses: bool,
    },
    /// At thousandths of the charge.
    Settle(prop::sample::Index, i64),
    Cancel(prop::sample::Index),
    Sweep,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (0_i64..=4).prop_map(Move::Wait),
        6 => (0_usize..3, 1_i64..=5, any::<bool>())
            .prop_map(|(tenant, cost, lapses)| Move::Ask { tenant, cost, lapses }),
        3 => (any::<prop::sample::Index>(), 0_i64..=1_000).prop_map(|(which, share)| Move::Settle(which, share)),
        1 => any::<prop::sample::Index>().prop_map(Move::Cancel),
        2 => Just(Move::Sweep),
    ]
}

/// Rates and capacities of tenants in micro-tokens, the period in microseconds, and the numbers that the shared bucket
/// has beyond them.
type Numbers = (Vec<(i64, i64)>, i64, (i64, i64, i64));

fn numbers(period: impl Strategy<Value = i64>) -> impl Strategy<Value = Numbers> {
    (vec((1_i64..=2, 1_i64..=5), 1..4), period, (0_i64..=2, 0_i64..=4, prop_oneof![2 => Just(0_i64), 1 => 1_i64..=2]))
}

impl Shares {
    fn of((tenants, period, (kept, lent, rate)): &Numbers) -> Self {
        let period = Duration::from_micros(u64::try_from(*period).unwrap());
        let of_tenant = |(tenant, (rate, capacity)): (usize, &(i64, i64))| {
            bucket(&format!("own-{tenant}"), micros(*rate), period, micros(*capacity))
        };
        let (rates, capacities): (Vec<_>, Vec<_>) = tenants.iter().copied().unzip();
        let kept = capacities.iter().sum::<i64>() + kept;
        Self {
            own: tenants.iter().enumerate().map(of_tenant).collect(),
            shared: bucket("shared", micros(rates.iter().sum::<i64>() + rate), period, micros(kept + lent)),
            kept: micros(kept),
            world: World::default(),
        }
    }

    /// Plays a story. If each charge of the shared bucket may be rounded, the bucket may be short of the own ones by a
    /// micro-token for each of its charges since it was last full or last lent.
    fn play(&mut self, story: &[Move], is_rounded: bool) -> Result<(), TestCaseError> {
        let (mut now, mut charges, mut open) = (0, 0, Vec::new());
        for (line, step) in story.iter().enumerate() {
            if self.held(self.shared.global(), at(now)) == self.shared.spec().capacity.unwrap().micros() {
                charges = 0;
            }
            match step {
                Move::Wait(span) => {
                    now += span;
                    self.world.reap(at(now));
                }
                Move::Ask { tenant, cost, lapses } => {
                    let tenant = tenant % self.own.len();
                    let own = self.held(self.own(tenant), at(now));
                    let granted = self.ask(tenant, micros(*cost), lapses.then_some(line), at(now));
                    let rounded = if is_rounded { charges } else { 0 };
                    prop_assert!(granted.is_some() || own - rounded < *cost, "refused within its share, at {line}");
                    if let Some((alternative, receipt)) = granted {
                        charges = if alternative == 0 { charges + 1 } else { 0 };
                        open.push(receipt);
                    }
                }
                Move::Settle(which, share) if !open.is_empty() => {
                    let receipt = open.swap_remove(which.index(open.len()));
                    let cost = receipt.charges[0].cost.micros() * share / 1_000;
                    // A lapsed call is no longer settled.
                    let _ = self.world.settled(Verb::Settle(receipt, micros(cost)), at(now));
                }
                Move::Cancel(which) if !open.is_empty() => {
                    let receipt = open.swap_remove(which.index(open.len()));
                    let _ = self.world.settled(Verb::Cancel(receipt), at(now));
                }
                Move::Sweep => self.world.sweep(at(now)),
                Move::Settle(..) | Move::Cancel(_) => {}
            }
            let allowed = if is_rounded { charges } else { 0 };
            for later in now..now + 6 {
                prop_assert!(
                    self.gap(at(later)) <= allowed,
                    "line {line}, at {later}: {} > {allowed}",
                    self.gap(at(later))
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(config())]

    /// Calls, refusals, refunds, lapses and sweeps of one to three tenants, where the shared rate is whole micro-tokens
    /// a microsecond.
    #[test]
    fn the_shared_bucket_holds_what_the_own_ones_promise(numbers in numbers(Just(1)), story in vec(moves(), 1..26)) {
        Shares::of(&numbers).play(&story, false)?;
    }

    /// The same where each write of a row may lose the fraction of a micro-token.
    #[test]
    fn rounding_costs_a_micro_token_for_each_charge(numbers in numbers(2_i64..=4), story in vec(moves(), 1..26)) {
        Shares::of(&numbers).play(&story, true)?;
    }
}

/// Two tenants of five tokens and one a second each; the shared bucket keeps ten, and lends ten.
fn two() -> Shares {
    let own = |tenant: usize| bucket(&format!("own-{tenant}"), tokens(1), SECOND, tokens(5));
    Shares {
        own: vec![own(0), own(1)],
        shared: bucket("shared", tokens(2), SECOND, tokens(20)),
        kept: tokens(10),
        world: World::default(),
    }
}

#[test]
fn a_tenant_borrows_what_nobody_uses_and_no_more() {
    let mut shares = two();
    // A call larger than its own bucket borrows whole, down to the tokens that are kept.
    assert_eq!(shares.ask(0, tokens(10), None, sec(0)).unwrap().0, 1);
    assert_eq!(shares.gap(sec(0)), 0);
    assert!(shares.ask(0, tokens(6), None, sec(0)).is_none());
    for tenant in [1, 0] {
        assert_eq!(shares.ask(tenant, tokens(5), None, sec(0)).unwrap().0, 0, "the own share is there");
    }
    assert!(shares.ask(1, tokens(1), None, sec(0)).is_none());
    assert_eq!(shares.ask(1, tokens(1), None, sec(1)).unwrap().0, 0);
    // With a capacity of no more than the kept tokens, nothing is ever lent.
    let mut shares = Shares { shared: bucket("shared", tokens(2), SECOND, tokens(10)), ..two() };
    assert!(shares.ask(0, tokens(5), None, sec(0)).is_some());
    assert!((0..100).all(|second| shares.ask(0, tokens(1), None, sec(second)).is_none_or(|(which, _)| which == 0)));
}

/// Lends all that can be lent, so that the buckets are on a par; then something is done, and somebody within its share
/// is refused. When the shared bucket is full again, all is well.
#[track_caller]
fn breaks(then: impl FnOnce(&mut Shares, Receipt)) {
    let mut shares = two();
    let (_, lent) = shares.ask(0, tokens(10), None, sec(10)).unwrap();
    assert_eq!(shares.gap(sec(10)), 0);
    then(&mut shares, lent);
    assert!(shares.gap(sec(10)) > 0);
    let mut is_refused = |tenant| {
        let own = shares.held(shares.own(tenant), sec(10));
        own > 0 && shares.ask(tenant, micros(own), None, sec(10)).is_none()
    };
    let refused: Vec<_> = (0..2).filter(|tenant| is_refused(*tenant)).collect();
    assert!(!refused.is_empty());
    assert!(shares.gap(sec(100)) <= 0);
}

#[test]
fn an_overage_of_a_borrowed_call_breaks_shares() {
    breaks(|shares, lent| drop(shares.world.settled(Verb::Settle(lent, tokens(12)), sec(10)).unwrap()));
}

#[test]
fn an_overage_of_an_own_call_breaks_shares() {
    // Also of an idle own bucket, which is full again, it is taken at once.
    let mut shares = two();
    let (_, own) = shares.ask(0, tokens(1), None, sec(0)).unwrap();
    drop(shares.ask(0, tokens(10), None, sec(10)).unwrap());
    assert_eq!(shares.gap(sec(10)), 0);
    shares.world.settled(Verb::Settle(own, tokens(4)), sec(10)).unwrap();
    assert_eq!(shares.gap(sec(10)), 0);
    // But not a debt that no own bucket shows.
    breaks(|shares, _| {
        let (_, own) = shares.ask(0, tokens(5), None, sec(10)).unwrap();
        shares.world.settled(Verb::Settle(own, tokens(8)), sec(10)).unwrap();
    });
}

#[test]
fn a_reservation_and_a_debit_of_the_shared_bucket_break_shares() {
    breaks(|shares, _| {
        let _ = shares.world.reserved(shares.shared.global().cost(12), sec(10));
    });
    breaks(|shares, _| drop(shares.world.balance(Verb::debit(shares.shared.global().cost(1)), sec(10))));
}

#[test]
fn a_credit_and_a_reset_of_an_own_bucket_break_shares() {
    for give in [Verb::credit, Verb::Reset] {
        breaks(|shares, _| {
            drop(shares.ask(0, tokens(5), None, sec(10)).unwrap());
            shares.world.balance(give(shares.own(0).cost(5)), sec(10));
        });
    }
}

#[test]
fn changed_numbers_break_shares() {
    breaks(|shares, _| shares.own[1] = bucket("own-1", tokens(1), SECOND, tokens(8)));
}

#[test]
fn own_rows_that_a_crash_loses_break_shares() {
    breaks(|shares, _| {
        drop(shares.ask(0, tokens(5), None, sec(10)).unwrap());
        shares.world.delete(&shares.own(0));
    });
}

#[test]
fn a_tenant_that_is_added_breaks_shares() {
    breaks(|shares, _| {
        shares.own.push(bucket("own-2", tokens(1), SECOND, tokens(5)));
        drop(shares.ask(2, tokens(5), None, sec(10)).unwrap());
    });
}

#[test]
fn a_step_back_of_the_clock_breaks_shares() {
    // The row that is written before the step stands there, and the other gains twice.
    breaks(|shares, _| drop(shares.ask(1, tokens(5), None, sec(5)).unwrap()));
}
