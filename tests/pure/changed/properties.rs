//! Bounds, waits and sweeps, under any definitions that take turns.

use proptest::prelude::*;
use tollgate::plan::Answer;
use tollgate::{LimitKind, Tokens};

use super::definitions::{Definitions, Grid, KINDS, of_any_kind, of_one_grid, over_months, room};
use super::left::Left;
use super::story::{Event, spans, stories, tell};
use crate::story::config;
use crate::world::{at, due};

/// How often another kind or grid wrote the row, from one instant to another, where one of the two counts in steps.
fn turns(definitions: &Definitions, events: &[Event], from: i64, to: i64) -> i64 {
    let written: Vec<_> = events
        .iter()
        .filter_map(|event| match *event {
            Event::Granted { which, at, .. } | Event::Altered { which, at, .. } if (from..=to).contains(&at) => {
                Some(definitions.grid(which))
            }
            _ => None,
        })
        .collect();
    let is_turn = |two: &&[Grid]| two[0] != two[1] && two.iter().any(|(_, steps)| steps.is_some());
    i64::try_from(written.windows(2).filter(is_turn).count()).unwrap()
}

proptest! {
    #![proptest_config(config())]

    /// Live definitions of one kind and grid add nothing beyond the larger capacity, the deeper debt and the larger
    /// rate, after any settlements, credits, debits and sweeps.
    #[test]
    fn definitions_that_change_grant_no_more_than_the_largest(
        definitions in prop_oneof![2 => of_one_grid(), 1 => over_months()],
        // A clock that goes back finds a deleted row missing, and grants anew.
        (story, sweeps) in prop_oneof![(stories(true, false), Just(true)), (stories(true, true), Just(false))],
    ) {
        // Where the clock goes back into an earlier month, callers name another period, which may bring a capacity.
        if definitions.have_months() && !sweeps {
            return Ok(());
        }
        let most = definitions.iter().map(room).max().unwrap();
        for (from, to, net) in spans(&tell(&definitions, &story, sweeps).events) {
            let bound = most + definitions.refilled(from, to);
            prop_assert!(net <= bound, "{net} of {bound} from {from} to {to}");
        }
    }

    /// Live definitions of any kinds, grids and numbers of rows grant no more than all of them would, each by itself. A
    /// row that counts in steps stands at the start of one: so where kinds or grids take turns, each turn may bring a
    /// capacity.
    #[test]
    fn definitions_of_any_kinds_grant_no_more_than_their_sum(
        definitions in of_any_kind(&[KINDS.as_slice(), &[LimitKind::SteppedBucket]].concat()),
        story in stories(true, false),
    ) {
        let events = tell(&definitions, &story, true).events;
        let largest = definitions.iter().map(room).max().unwrap();
        for (from, to, net) in spans(&events) {
            let of_each = definitions.iter().map(|limit| room(limit) + definitions.refilled_by(limit, from, to));
            let bound = of_each.sum::<i64>() + turns(&definitions, &events, from, to) * largest;
            prop_assert!(net <= bound, "{net} of {bound} from {from} to {to}");
        }
    }

    /// Nobody sees a sweep, under any later definitions and kinds.
    #[test]
    fn a_sweep_changes_nothing(
        definitions in prop_oneof![2 => of_any_kind(&KINDS), 1 => over_months()],
        story in stories(true, false),
    ) {
        let [kept, swept] = [false, true].map(|sweeps| tell(&definitions, &story, sweeps));
        prop_assert_eq!(kept.events, swept.events);
        prop_assert_eq!(kept.balances, swept.balances);
    }

    /// A refused call succeeds at the instant that the refusal names, and not a microsecond earlier, whichever
    /// definition has written the row.
    #[test]
    fn waits_are_exact_while_definitions_change(
        definitions in prop_oneof![
            of_one_grid(),
            of_any_kind(&KINDS),
            of_any_kind(&[LimitKind::SteppedBucket]),
            over_months(),
        ],
        story in prop_oneof![stories(true, false), stories(true, true)],
    ) {
        for refused in tell(&definitions, &story, true).refused {
            let Answer::Denied(denied) = refused.again() else { panic!("it was refused") };
            let retry_at = due(denied.retry_at);
            let (early, then) = (refused.at(at(retry_at.micros() - 1)), refused.at(retry_at));
            prop_assert!(matches!(early, Answer::Denied(_)), "{refused:?} early: {early:?}");
            prop_assert!(matches!(then, Answer::Granted { .. }), "{refused:?} then: {then:?}");
        }
    }

    /// Under one definition all is as in rows that store the remaining tokens and no instant at which they are full.
    /// Only settlements above a charge differ, and a clock that goes back behind that instant.
    #[test]
    fn under_one_definition_all_is_as_if_rows_said_what_is_left(
        definitions in of_one_grid(),
        story in stories(false, false),
    ) {
        let one = definitions.first();
        let (grants, balances) = Left::default().tell(one.iter().next().unwrap(), &story);
        let told = tell(&one, &story, false);
        // One model cuts a settlement on a full row, and the other ignores it.
        let is_grant = |event: &Event| matches!(event, Event::Granted { .. });
        prop_assert_eq!(told.events.into_iter().filter(is_grant).collect::<Vec<_>>(), grants);
        prop_assert_eq!(told.balances.into_iter().flatten().map(Tokens::micros).collect::<Vec<_>>(), balances);
    }
}
