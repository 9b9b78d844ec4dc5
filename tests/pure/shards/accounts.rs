//! Calls that ask all rows together.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::algebra::{Account, Ask, Portion, State, Terms, Verdict};
use tollgate::plan::{Answer, Verb};
use tollgate::{Charge, Error, Grant, Key, Limit, LimitKind, LimitSpec, SECOND, Tokens};

use super::{Move, Shards, ask, call, limits, moves};
use crate::story::config;
use crate::world::{at, due, micros, receipt};

/// Rows at the epoch with so many micro-tokens left in each.
fn rows_with(terms: &Terms, left: &[i64]) -> Vec<Option<State>> {
    let shards = left.len();
    let value = |(shard, left): (usize, &i64)| {
        let terms = terms.shard(shard, shards);
        micros(left - terms.balance(&terms.full(at(0)), at(0)).micros())
    };
    left.iter().enumerate().map(value).map(|value| Some(State::new(value, at(0)))).collect()
}

proptest! {
    #![proptest_config(config())]

    /// An account says what one row with the whole limit would: it grants whenever the sum suffices, and a refusal
    /// names the first microsecond at which it does.
    #[test]
    fn an_account_grants_what_its_sum_allows_and_waiting_is_exact(limit in limits(), story in moves()) {
        let most = limit.spec().max_reserved.micros();
        let (mut shards, mut now, mut charged) = (Shards::of(&limit), 0, Vec::<Charge>::new());
        for (gap, step) in story {
            now += gap;
            let before = shards.clone();
            let balance = before.balance(at(now)).micros();
            let answer = match step {
                Move::Pooled(cost, reserving) => {
                    let bound = if reserving { most } else { 0 };
                    let answer = shards.pooled(call(&limit, cost, reserving), at(now));
                    match &answer {
                        Ok(Answer::Granted { grant: Grant { remaining, receipt: paid, .. }, .. }) => {
                            prop_assert!(i128::from(balance) - i128::from(cost) >= -i128::from(bound));
                            prop_assert_eq!(remaining.micros(), balance - cost);
                            prop_assert_eq!(paid.charges.iter().map(|charge| charge.cost.micros()).sum::<i64>(), cost);
                            charged.clone_from(&paid.charges);
                        }
                        Ok(Answer::Denied(denied)) => {
                            prop_assert!(i128::from(balance) - i128::from(cost) < -i128::from(bound));
                            prop_assert_eq!(&shards.rows, &before.rows);
                            let retry_at = due(denied.retry_at).micros();
                            let call = || call(&limit, cost, reserving);
                            let asked = |instant| before.clone().pooled(call(), at(instant)).unwrap();
                            let then = matches!(asked(retry_at), Answer::Granted { .. });
                            prop_assert!(then);
                            prop_assert!(matches!(asked(retry_at - 1), Answer::Denied(_)));
                        }
                        Err(Error::CostExceedsCapacity { .. }) => {}
                        other => prop_assert!(false, "{other:?}"),
                    }
                    answer
                }
                Move::Placed(shard, cost, reserving) => {
                    let shard = shard % shards.rows.len();
                    shards.placed(shard, at(now), ask(cost, reserving));
                    continue;
                }
                Move::Credit(amount) => shards.pooled(Verb::credit(limit.global().cost(micros(amount))), at(now)),
                Move::Debit(amount) => shards.pooled(Verb::debit(limit.global().cost(micros(amount))), at(now)),
                Move::Cancel => shards.pooled(Verb::Cancel(receipt(&std::mem::take(&mut charged))), at(now)),
                Move::Settle(actual) => {
                    shards.pooled(Verb::Settle(receipt(&std::mem::take(&mut charged)), micros(actual)), at(now))
                }
            };
            if let (Ok(Answer::Done(changed)), Move::Credit(amount)) = (&answer, step) {
                let capacity = limit.spec().capacity.unwrap().micros();
                prop_assert_eq!(changed.remaining.micros(), (balance + amount).min(capacity));
            }
        }
    }

    /// A reservation is laid on the rows so that it is ready as soon as any way of laying it is.
    #[test]
    fn a_reservation_is_ready_as_soon_as_can_be(
        values in vec(-3_000_i64..3_000, 1..6),
        rate in 6_i64..40,
        reserved in 0_i64..20_000,
        cost in 1_i64..9_000,
    ) {
        let spec = LimitSpec::new("ready", LimitKind::TokenBucket, micros(rate), Duration::from_micros(7));
        let spec = spec.with(|spec| (spec.capacity, spec.max_reserved) = (Some(micros(20_000)), micros(reserved)));
        let terms = Terms::of(&spec.try_into().unwrap(), &Key::GLOBAL);
        let rows = rows_with(&terms, &values);
        let answer = Account::new(&terms, &rows, at(0)).decide(Ask::reserve(micros(cost)));
        let Ok(Verdict::Granted { portions, ready_at, .. }) = answer else { return Ok(()) };
        let n = i64::try_from(values.len()).unwrap();
        let share = |whole: i64, index: i64| whole / n + i64::from(index < whole % n);
        let room = |index: i64, value: i64, instant: i64| {
            (value + share(rate, index) * instant / 7).min(value + share(reserved, index)).max(0)
        };
        let rooms = |instant| (0..).zip(&values).map(|(index, value)| room(index, *value, instant)).sum::<i64>();
        let by_walking = (0..1_000_000).find(|instant| rooms(*instant) >= cost).unwrap();
        prop_assert_eq!(ready_at.micros(), by_walking);
        for Portion { shard, next, .. } in portions {
            let terms = terms.shard(shard, values.len());
            let left = terms.balance(&next, next.ts).micros();
            prop_assert!(left >= -share(reserved, i64::try_from(shard).unwrap()));
            prop_assert!(terms.balance(&next, ready_at) >= Tokens::ZERO);
        }
    }

    /// After any debit the rows that it was taken from stand level, and the others lower.
    #[test]
    fn a_debit_levels_the_rows(values in vec(-100_i64..=0, 1..9), amount in 0_i64..500) {
        let terms = Terms::of(&Limit::token_bucket("level", 1, SECOND).capacity(1_000), &Key::GLOBAL);
        let rows: Vec<_> = values.iter().map(|value| Some(State::new(micros(*value), at(0)))).collect();
        let parts = Account::new(&terms, &rows, at(0)).debit(micros(amount)).unwrap();
        prop_assert_eq!(parts.iter().map(|part| part.taken.micros()).sum::<i64>(), amount);
        let mut after = values.clone();
        for part in &parts {
            after[part.shard] = part.next.value.micros();
        }
        let lowered: Vec<_> = parts.iter().map(|part| part.next.value.micros()).collect();
        if let (Some(low), Some(high)) = (lowered.iter().min(), lowered.iter().max()) {
            prop_assert!(high - low <= 1);
            let untouched = (0..values.len()).filter(|index| parts.iter().all(|part| part.shard != *index));
            prop_assert!(untouched.into_iter().all(|index| after[index] <= low + 1));
        }
    }

    /// One of the rows, asked alone, answers as it does in the account, and leaves the same row.
    #[test]
    fn a_row_of_an_account_answers_alone(
        limit in limits(),
        story in moves(),
        shard in 0_usize..16,
        cost in 0_i64..5_000_000,
    ) {
        let (mut shards, mut now) = (Shards::of(&limit), 0);
        for (gap, step) in story {
            now += gap;
            if let Move::Placed(shard, cost, reserving) = step {
                shards.placed(shard % shards.rows.len(), at(now), ask(cost, reserving));
            }
        }
        let (terms, shard) = (shards.terms(), shard % shards.rows.len());
        let account = Account::new(&terms, &shards.rows, at(now));
        let alone = [shards.rows[shard].clone()];
        let by_itself = Account::new(&terms.shard(shard, shards.rows.len()), &alone, account.now()).decide(ask(cost, false));
        match (account.decide_in(shard, ask(cost, false)), by_itself) {
            (Ok(Verdict::Granted { portions, remaining, .. }), Ok(Verdict::Granted { portions: own, .. })) => {
                prop_assert_eq!(remaining.micros(), account.balance().micros() - cost);
                prop_assert_eq!(portions.first().map(|one| &one.next), own.first().map(|one| &one.next));
                prop_assert!(portions.iter().all(|portion| portion.shard == shard));
            }
            (one, other) => prop_assert_eq!(one, other),
        }
    }
}
