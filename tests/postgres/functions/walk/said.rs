//! The overrides that a walk sets.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tollgate::{Limit, LimitKind, MINUTE, Request, SECOND, Storage, Tokens};

use super::{Charged, Walk, asked};
use crate::functions::kind;
use crate::world::second;

/// A limit's name, a key, or nothing for every key, and a label.
pub(super) type Whom = (String, String, String);

/// An override of the walk's.
#[derive(Clone, Debug)]
pub(super) struct Said {
    effect: &'static str,
    numbers: Option<Limit>,
    /// The share of the rate at the start that is slowed down, in millionths.
    share: Option<i64>,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    set_at: DateTime<Utc>,
}

impl Walk {
    /// Sets an override of a limit, in any kind of numbers, for a while; or removes one.
    pub(super) async fn override_something(&mut self, conn: &mut PgConnection) {
        let limit = self.dice.choice(&self.limits).unwrap().clone();
        let [key, label] = [["", "a", "b"], ["", "x", "y"]].map(|texts| self.dice.choice(texts).unwrap().to_owned());
        let whom = (limit.name().to_owned(), key, label);
        let effect =
            self.dice.choice(["numbers", "numbers", "slowed", "slowed", "deny", "unlimited", "removed"]).unwrap();
        let share = (effect == "slowed").then(|| self.dice.i64(1..1_000_000));
        let numbers = (effect == "numbers").then(|| {
            let factor = Tokens::from_micros(self.dice.i64(1..40_000_000));
            let period = [SECOND, MINUTE, 7 * SECOND][self.dice.usize(..3)];
            let reserved = Tokens::new(self.dice.choice([0, 0, 7]).unwrap());
            let renumbered = limit.spec().with(|spec| {
                // It may have been set while this was a wallet.
                spec.kind = if spec.kind == LimitKind::Meter { LimitKind::Wallet } else { spec.kind };
                if spec.kind != LimitKind::Wallet {
                    (spec.rate, spec.capacity) = (factor, Some(Tokens::new(self.dice.u32(1..30))));
                }
                spec.period = if spec.kind.has_period() { period } else { spec.period };
                // An override knows no storage, and may reserve.
                spec.max_reserved = if spec.kind == LimitKind::Billing { Tokens::ZERO } else { reserved };
                spec.storage = Storage::Durable;
            });
            Limit::try_from(renumbered).unwrap()
        });
        let from = self.now + TimeDelta::seconds(self.dice.i64(-100..30));
        // One that begins where it is set has begun at any instant.
        let since = if self.dice.bool() { from } else { second(-2e9) };
        let set_at = since + TimeDelta::microseconds(self.dice.i64(0..1_000_000));
        let said =
            Said { effect, numbers, share, from, until: from + TimeDelta::seconds(self.dice.i64(1..300)), set_at };
        self.say(conn, whom, (effect != "removed").then_some(said)).await;
    }

    /// Sets exactly the overrides that a limit had when it was charged.
    pub(super) async fn say_as_it_was(&mut self, conn: &mut PgConnection, charged: &Charged) {
        let name = charged.request.limit().name();
        let now: Vec<_> = self.said.keys().filter(|whom| whom.0 == name).cloned().collect();
        for whom in now {
            self.say(conn, whom, None).await;
        }
        let mut in_order = charged.said.clone();
        in_order.sort_by_key(|(_, said)| said.set_at);
        for (whom, said) in in_order {
            // A slow-down keeps the share that it had.
            let from = if said.share.is_some() { self.now } else { second(-1e9) };
            self.long_ago += TimeDelta::seconds(1);
            let said = Said { from, until: second(1e9), set_at: self.long_ago, ..said };
            self.say(conn, whom, Some(said)).await;
        }
        if charged.decided_at < self.now && self.dice.bool() {
            self.say_unlimited_later(conn, &charged.request).await;
        }
    }

    /// An override that somebody sets now says nothing of charges before, although it says that it began then.
    async fn say_unlimited_later(&mut self, conn: &mut PgConnection, request: &Request) {
        let key = if self.dice.bool() { asked(request).0 } else { String::new() };
        let (from, until) = (second(-1e9), self.now + TimeDelta::microseconds(1));
        let later = Said { effect: "unlimited", numbers: None, share: None, from, until, set_at: self.now };
        self.say(conn, (request.limit().name().to_owned(), key, "later".to_owned()), Some(later)).await;
    }

    async fn say(&mut self, conn: &mut PgConnection, whom: Whom, said: Option<Said>) {
        let delete = "delete from tollgate.overrides where name = $1 and key = $2 and label = $3";
        let delete = sqlx::query(delete).bind(&whom.0).bind(&whom.1).bind(&whom.2);
        delete.execute(&mut *conn).await.unwrap();
        let Some(said) = said else {
            self.said.remove(&whom);
            return;
        };
        let micros = |span: std::time::Duration| i64::try_from(span.as_micros()).unwrap();
        let numbers = said.numbers.as_ref();
        let capacity = |limit: &Limit| limit.capacity.unwrap_or_default().micros();
        let insert =
            "insert into tollgate.overrides values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'x', 'x', $12)";
        let insert = sqlx::query(insert).bind(&whom.0).bind(&whom.1).bind(&whom.2).bind(said.effect);
        let insert = insert
            .bind(numbers.map(|limit| kind(limit.kind)))
            .bind(numbers.map(|limit| limit.rate.micros()).or(said.share));
        let insert = insert.bind(numbers.map(|limit| micros(limit.period))).bind(numbers.map(capacity));
        let insert = insert
            .bind(numbers.map(|limit| limit.max_reserved.micros()))
            .bind(said.from)
            .bind(said.until)
            .bind(said.set_at);
        insert.execute(conn).await.unwrap();
        self.said.insert(whom, said);
    }

    /// The overrides of a request now.
    pub(super) fn said_of(&self, request: &Request) -> Vec<(Whom, Said)> {
        let name = request.limit().name();
        let (key, _) = asked(request);
        let is_live = |said: &Said| said.from <= self.now.max(said.set_at) && self.now < said.until;
        let said = self.said.iter().filter(|(whom, _)| whom.0 == name && (whom.1.is_empty() || whom.1 == key));
        let present = |said: &Said| {
            let (past, whole) = ((self.now - said.from).num_seconds().max(0), said.until - said.from);
            let grown = |share| i128::from(1_000_000 - share) * i128::from(past) * 1_000_000;
            let grown = |share| grown(share) / i128::from(whole.num_microseconds().unwrap());
            Said { share: said.share.map(|share| share + i64::try_from(grown(share)).unwrap()), ..said.clone() }
        };
        said.filter(|(_, said)| is_live(said)).map(|(whom, said)| (whom.clone(), present(said))).collect()
    }
}
