use tollgate::algebra::{Account, Ask, List, State, Terms, Timestamp, Verdict};
use tollgate::plan::{Plan, Verb};
use tollgate::{DAY, HOUR, Limit, MINUTE, Tokens};

use crate::settled::{answer, expect_named};

/// A row with a list that a hand may have written, as PostgreSQL has it as text. On the lines below are the numbers of
/// the row and of a call: `value ts full_at now cost limit`.
///
/// A list is read as what it says, or not at all. No sum of it is off, and no call on the row panics. A grant takes
/// what it costs, and a refusal names the first microsecond that would grant it.
pub fn list(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (column, numbers) = text.split_once('\n').unwrap_or((text, ""));
    let list = if column == "null" {
        List::None
    } else {
        match List::from_text(column) {
            Some(list) => list,
            None => return expect_unreadable(column),
        }
    };
    expect_as_written(column, &list);
    let mut numbers = numbers.split_ascii_whitespace().map(|number| number.parse().unwrap_or_default());
    let [value, ts, full_at, now, cost, limit] = [(); 6].map(|()| numbers.next().unwrap_or_default());
    let [ts, full_at, now] = [ts, full_at, now].map(Timestamp::from_micros);
    let row = State { value: Tokens::from_micros(value), ts, full_at, list };
    let limits = limits();
    let place = usize::try_from(limit.unsigned_abs()).unwrap_or_default() % limits.len();
    let asked = Asked { limit: &limits[place], row, now, cost: Tokens::from_micros(cost.saturating_abs()) };
    asked.expect_sum();
    asked.expect_exact();
    asked.expect_answers();
}

fn limits() -> [Limit; 11] {
    [
        Limit::token_bucket("bucket", 10, MINUTE).capacity(20),
        Limit::fixed_window("window", 10, HOUR),
        Limit::stepped_bucket("stepped", 10, MINUTE),
        Limit::sliding_window("sliding", 10, MINUTE),
        Limit::sliding_window("coarse", 10, MINUTE).resolution(3),
        Limit::concurrency("leases", 10, MINUTE),
        Limit::wallet("money").overdraft(10),
        Limit::token_bucket("owing", 10, MINUTE).max_reserved(5),
        Limit::monthly("month", 10).max_reserved(5),
        Limit::monthly("last_days", 10).start(30 * DAY),
        Limit::billing("period", 10),
    ]
}

/// The numbers of a text `{1,2,3}`, if it is one.
fn numbers(column: &str) -> Option<Vec<i64>> {
    let inner = column.strip_prefix('{')?.strip_suffix('}')?;
    inner.split_terminator(',').map(|number| number.parse().ok()).collect()
}

fn expect_unreadable(column: &str) {
    let Some(numbers) = numbers(column) else { return };
    assert_eq!(List::from_column(&numbers), None, "{column}");
    let is_list = match numbers.as_slice() {
        [1, entries @ ..] => entries.len().is_multiple_of(2) && is_right(entries.chunks(2)),
        [2, entries @ ..] => entries.len().is_multiple_of(4) && is_right(entries.chunks(4)),
        [4, _, length] => (1..=31_536_000_000_000_000).contains(length),
        [5, _, offset] => (0..31 * 86_400_000_000).contains(offset),
        other => *other == [3],
    };
    assert!(!is_list, "{column} is a list");
}

/// Entries in their order, each of some amount.
fn is_right<'n>(entries: impl Iterator<Item = &'n [i64]> + Clone) -> bool {
    let ends_at = entries.clone().map(|entry| Timestamp::from_micros(entry[0]));
    ends_at.is_sorted() && entries.into_iter().all(|entry| entry[1] >= 0)
}

fn expect_as_written(column: &str, list: &List) {
    let Some(written) = list.to_column() else { return assert_eq!(column, "null") };
    assert_eq!(List::from_column(&written).as_ref(), Some(list));
    assert!(list.entries().is_sorted_by_key(|entry| entry.ends_at), "{column} is out of order");
    assert!(list.entries().iter().all(|entry| !entry.amount.is_negative()), "{column} lists less than nothing");
    // Instants that no row can hold are cut.
    let numbers = numbers(column).unwrap_or_else(|| panic!("{column} is no list, and was read as {list:?}"));
    assert_eq!(numbers.len(), written.len());
    let width = if matches!(list, List::Leases(_)) { 4 } else { 2 };
    for (place, (number, written)) in numbers.iter().zip(written).enumerate() {
        let is_instant = place > 0 && (place - 1).is_multiple_of(width);
        let expected = if is_instant { Timestamp::from_micros(*number).micros() } else { *number };
        assert_eq!(written, expected, "{column} at {place}");
    }
}

struct Asked<'l> {
    limit: &'l Limit,
    row: State,
    now: Timestamp,
    cost: Tokens,
}

impl Asked<'_> {
    fn terms(&self) -> Terms {
        let request = self.limit.key("k");
        let (limit, key, _) = request.asked().expect("the request is right");
        Terms::of(limit, key)
    }

    /// A limit that counts goes by its list, and no balance is above the capacity.
    fn expect_sum(&self) {
        let Self { limit, row, now, .. } = self;
        let balance = i128::from(self.terms().balance(row, *now).micros());
        let now = row.ts.max(*now);
        let capacity = i128::from(limit.most().micros());
        let amounts = |counts: &dyn Fn(Timestamp) -> bool| -> i128 {
            let entries = row.list.entries().iter().filter(|entry| counts(entry.ends_at));
            entries.map(|entry| i128::from(entry.amount.micros())).sum()
        };
        if row.list.is_wallet() || limit.name() == "money" {
            return;
        }
        assert!(balance <= capacity, "{balance} of {row:?}");
        let is_own = match row.list {
            List::Grants(_) => ["sliding", "coarse"].contains(&limit.name()),
            List::Leases(_) => limit.name() == "leases",
            _ => false,
        };
        if !is_own || row.is_over(now) {
            return;
        }
        // A grant counts for a period from the row's instant at most, and for no less than its list says until then.
        let within = row.ts.plus(limit.period);
        let [most, least] = [
            amounts(&|ends_at| ends_at > now || ends_at == Timestamp::MAX),
            amounts(&|ends_at| ends_at > now && ends_at <= within),
        ];
        let cut = |balance: i128| balance.clamp(i64::MIN.into(), i64::MAX.into());
        assert!(balance >= cut(capacity - most), "{balance} is below {capacity} less {most}: {row:?}");
        let least = least.min(i64::MAX.into());
        assert!(balance <= cut(capacity - least), "{balance} is above {capacity} less {least}: {row:?}");
    }

    /// A grant takes what it costs, and a refusal is granted at the instant that it names and not before.
    fn expect_exact(&self) {
        let terms = self.terms();
        if self.row.list.is_wallet() != (self.limit.name() == "money") {
            return;
        }
        let rows = [Some(self.row.clone())];
        let decided = |now| Account::new(&terms, &rows, now).decide(Ask::consume(self.cost));
        let account = Account::new(&terms, &rows, self.now);
        match decided(self.now) {
            Ok(Verdict::Granted { portions, remaining, .. }) => {
                let left = i128::from(account.balance().micros()) - i128::from(self.cost.micros());
                assert_eq!(i128::from(remaining.micros()), left, "{:?}", self.row);
                let after = portions.first().map_or(&self.row, |portion| &portion.next);
                assert_eq!(terms.balance(after, account.now()), remaining, "{:?} becomes {after:?}", self.row);
            }
            Ok(Verdict::Denied { retry_at, remaining, .. }) => {
                assert_eq!(remaining, account.balance());
                let holds = i128::from(self.limit.most().micros()) >= i128::from(self.cost.micros());
                if !holds || self.limit.name() == "money" || retry_at == Timestamp::MAX {
                    return;
                }
                assert!(retry_at > account.now(), "{:?} is refused, and ready", self.row);
                let before = Timestamp::from_micros(retry_at.micros() - 1);
                assert!(matches!(decided(retry_at), Ok(Verdict::Granted { .. })), "{:?} waits in vain", self.row);
                // The instants of more grants than a row lists are rounded up, until some of them have left.
                let is_rounded = self.row.list.entries().len() > 64;
                let is_first = is_rounded || matches!(decided(before), Ok(Verdict::Denied { .. }));
                assert!(is_first, "{:?} waits too long", self.row);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    /// Each verb answers, and what it writes can be read.
    fn expect_answers(&self) {
        let request = || self.limit.key("k").cost(self.cost);
        for call in [
            Verb::consume(request()),
            Verb::reserve(request()),
            Verb::check(request()),
            Verb::credit(request()),
            Verb::debit(request()),
            Verb::Reset(request()),
            Verb::Look(request()),
        ] {
            let plan = match Plan::new([call]) {
                Ok(plan) => plan,
                Err(error) => {
                    expect_named(&error);
                    continue;
                }
            };
            let outcome = plan.decide(&[Some(self.row.clone())], &[], self.now);
            let _ = answer(&outcome);
            for change in &outcome.changes {
                let read = change.state.list.to_column().map_or(Some(List::None), |column| List::from_column(&column));
                assert_eq!(read.as_ref(), Some(&change.state.list), "what is written is read");
            }
        }
    }
}
