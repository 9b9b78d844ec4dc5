//! All doors in any order: callers that name the true period or an old one, and definitions of other kinds.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{List, State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{DAY, Limit, Receipt, Request, SECOND};

use crate::periods::{DAY_MICROS, named};
use crate::story::{EPOCH, config};
use crate::world::{World, at, tokens};

const MOST: i64 = 100;
const BILLING: Limit = Limit::billing("llm", MOST.unsigned_abs());

/// Definitions of other kinds of the same name.
fn strangers() -> Vec<Limit> {
    let most = MOST.unsigned_abs();
    vec![
        Limit::token_bucket("llm", most, SECOND),
        Limit::token_bucket("llm", most, 60 * DAY),
        Limit::fixed_window("llm", most, DAY),
        Limit::fixed_window("llm", most, 30 * DAY).start(Duration::ZERO),
        Limit::stepped_bucket("llm", most, DAY),
        Limit::sliding_window("llm", most, DAY),
        Limit::concurrency("llm", most, DAY),
        Limit::monthly("llm", most),
        Limit::monthly("llm", most).start(13 * DAY),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Door {
    /// Names the period that was true so many days ago.
    Named {
        days_ago: i64,
    },
    Stranger(usize),
    /// Gives back half of the last charge.
    Settle,
    Sweep,
}

fn doors() -> impl Strategy<Value = Door> {
    prop_oneof![
        5 => Just(Door::Named { days_ago: 0 }),
        3 => (0_i64..90).prop_map(|days_ago| Door::Named { days_ago }),
        6 => (0_usize..9).prop_map(Door::Stranger),
        1 => Just(Door::Settle),
        1 => Just(Door::Sweep),
    ]
}

/// One key, whose true periods follow each other.
struct Story {
    world: World,
    /// Where the true periods begin.
    starts: Vec<i64>,
    shards: u16,
    /// The tokens that were granted of each true period since somebody named it.
    granted: Vec<Option<i64>>,
    last: Option<(usize, Receipt, i64)>,
}

impl Story {
    fn period(&self, now: i64) -> usize {
        self.starts.iter().rposition(|start| *start <= now).unwrap_or(0)
    }

    fn named(&self, period: usize) -> Request {
        let limit = BILLING.shards(self.shards);
        named(limit.global(), (at(self.starts[period]), at(self.starts[period + 1])))
    }

    fn go(&mut self, door: Door, cost: i64, now: i64) {
        // A call marks only the rows that it writes. So with shards only true periods are kept.
        let door = match door {
            Door::Named { .. } if self.shards > 1 => Door::Named { days_ago: 0 },
            Door::Stranger(_) if self.shards > 1 => return,
            door => door,
        };
        let period = self.period(now);
        let request = match door {
            Door::Named { days_ago } => self.named(self.period(now - days_ago * DAY_MICROS)),
            Door::Stranger(stranger) => strangers()[stranger].global(),
            Door::Settle => {
                let Some((of, receipt, cost)) = self.last.take() else { return };
                let kept = self.world.settled(Verb::Settle(receipt, tokens(cost / 2)), at(now)).unwrap();
                let kept: i64 = kept.charges.iter().map(|charge| charge.cost.micros()).sum();
                let back = cost - kept / 1_000_000;
                self.granted[of] = self.granted[of].map(|granted| granted - back);
                return;
            }
            Door::Sweep => return self.world.sweep(at(now)),
        };
        let is_lease = request.limit().lease().is_some();
        let Answer::Granted { grant, .. } = self.world.call(Verb::consume(request.cost(cost)), at(now)).unwrap() else {
            return;
        };
        let is_named = matches!(door, Door::Named { days_ago } if self.period(now - days_ago * DAY_MICROS) == period);
        // A row has one mark: as long as it is marked with a month, nobody else's period is marked.
        let is_of_month = |row: &State| matches!(row.list, List::Month { .. });
        let is_named = is_named && !self.world.rows.values().any(is_of_month);
        if is_named || self.granted[period].is_some() {
            self.granted[period] = Some(self.granted[period].unwrap_or(0) + cost);
            self.last = (!is_lease).then_some((period, grant.receipt, cost));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// From the first call that names a period until it ends, all doors together take no more than the capacity.
    #[test]
    fn no_door_forgives_what_is_used_of_a_named_period(
        days in vec(28_i64..=31, 14),
        shards in prop_oneof![3 => Just(1_u16), 1 => Just(3)],
        story in vec((doors(), 0_i64..9_000_000, 1_i64..=MOST), 1..60),
    ) {
        let mut starts = vec![EPOCH];
        starts.extend(days.iter().scan(EPOCH, |start, days| {
            *start += days * DAY_MICROS;
            Some(*start)
        }));
        let granted = vec![None; starts.len()];
        let mut story_of = Story { world: World::default(), starts, shards, granted, last: None };
        let mut now = EPOCH + 5;
        for (door, pause, cost) in story {
            now += pause * 100_000 * (1 + pause % 7);
            if story_of.period(now) + 2 >= story_of.starts.len() {
                break;
            }
            story_of.go(door, cost, now);
            let over = story_of.granted.iter().flatten().any(|granted| *granted > MOST);
            prop_assert!(!over, "{:?} after {door:?} at {:?}", story_of.granted, Timestamp::from_micros(now));
        }
    }
}
