//! A clock that goes back or jumps.

use std::time::Duration;

use num_bigint::BigInt;
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Ask, State, Timestamp};
use tollgate::plan::Answer;
use tollgate::{Grant, Tokens};

use crate::model::Model;
use crate::story::{
    EPOCH, Line, STORY, Step, amounts, any_kind, call, config, limits, places, retell, spans, stories, tell,
};
use crate::world::{World, at, credit, debit, decide, due, terms_of};

proptest! {
    #![proptest_config(config())]

    /// A clock that goes back stands still: the row answers as at its own instant, and holds no more for it.
    #[test]
    fn a_clock_that_goes_back_stands_still(
        limit in limits(any_kind()),
        place in places(),
        back in 0..i64::MAX,
        amount in amounts(),
        reserving: bool,
    ) {
        let (request, terms) = (limit.global(), terms_of(&limit.global()));
        let row = place.state(&request, at(EPOCH));
        let (then, now) = (row.ts, at(row.ts.micros().saturating_sub(back)));
        let world = World::holding(&request, row.clone());
        let cost = amount.resolve(&world, &request, now, reserving);
        let ask = if reserving { Ask::reserve(cost) } else { Ask::consume(cost) };
        prop_assert_eq!(decide(&terms, Some(&row), now, ask), decide(&terms, Some(&row), then, ask));
        prop_assert_eq!(credit(&terms, Some(&row), now, cost), credit(&terms, Some(&row), then, cost));
        prop_assert_eq!(debit(&terms, Some(&row), now, cost), debit(&terms, Some(&row), then, cost));
        prop_assert_eq!(terms.refill(&row, now), State { value: row.value.min(Tokens::ZERO), ..row });
    }

    /// A caller that is refused while the clock stands behind a row waits until the clock has caught up, and as long as
    /// everybody from then on. A caller that waits for the named time is granted, and not a microsecond earlier.
    #[test]
    fn a_wait_behind_a_row_is_exact_by_the_clock_as_it_was_read(
        limit in limits(any_kind()),
        place in places(),
        back in 0..400_000_000_000_000_i64,
        amount in amounts(),
        reserving: bool,
    ) {
        let request = limit.global();
        let row = place.state(&request, at(EPOCH));
        let now = at(row.ts.micros() - back);
        let world = World::holding(&request, row.clone());
        let request = request.clone().cost(amount.resolve(&world, &request, now, reserving));
        let ask = |now| world.clone().call(call(reserving, [request.clone()]), now);
        match ask(now) {
            Ok(Answer::Denied(denied)) => {
                prop_assert_eq!((denied.observed_at, denied.decided_at), (now.into(), row.ts.into()));
                prop_assume!(due(denied.retry_at) < Timestamp::MAX);
                let wait = denied.retry_after().unwrap();
                prop_assert!(wait > Duration::from_micros(back.unsigned_abs()));
                let then = ask(now.plus(wait));
                prop_assert!(matches!(then, Ok(Answer::Granted { .. })), "{then:?}");
                let early = ask(now.plus(wait.saturating_sub(Duration::from_micros(1))));
                prop_assert!(matches!(early, Ok(Answer::Denied(_))), "{early:?}");
            }
            Ok(Answer::Granted { grant: Grant { observed_at, decided_at, .. }, ready_at, .. }) => {
                prop_assert_eq!((observed_at, decided_at), (now.into(), row.ts.into()));
                prop_assert!(ready_at == now || ready_at > row.ts);
            }
            _ => {}
        }
    }

    /// Over a whole story with a clock that jumps both ways no row goes back in time; and by the furthest instant that
    /// was ever read, never over.
    #[test]
    fn a_clock_that_jumps_wins_nothing(
        limit in limits(any_kind()),
        story in stories(),
        jumps in vec(-3_i64..3, STORY),
    ) {
        let model = Model::of(&limit.global());
        let told = tell(&limit, &story);
        let script: Vec<_> = (told.script().into_iter().zip(jumps))
            .filter(|(line, _)| !matches!(line.step, Step::Reset)) // It goes by the clock, wherever that is.
            .map(|(line, jump)| {
                let now = BigInt::from(line.now.micros()) + BigInt::from(jump) * &model.period;
                Line { now: i64::try_from(now).map_or(Timestamp::MAX, at), ..line }
            })
            .collect();
        let mut furthest = Timestamp::MIN;
        let mut events = retell(&limit, &script, |_, _| {}).events;
        for event in &mut events {
            if let (Some(before), Some(after)) = (&event.before, &event.after) {
                // A row that is over is written anew, at the start of a step.
                prop_assert!(after.ts >= before.ts || before.is_over(event.now), "{event:?}");
            }
            // Only a write records an instant, and of settlements one that finds the row over.
            let moved = event.before.as_ref().map(|row| row.ts) != event.after.as_ref().map(|row| row.ts);
            if event.before != event.after && (moved || !event.settles()) {
                furthest = furthest.max(event.now);
            }
            event.now = furthest;
        }
        for (first, last, granted) in spans(&events) {
            let refilled = model.refilled(first.after.as_ref().unwrap().ts, first.now, last.now);
            prop_assert!(granted <= &model.capacity + &model.max_reserved + refilled, "{first:?} to {last:?}");
        }
    }
}
