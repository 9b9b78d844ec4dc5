//! The cost of the calls against budgets, as clients report it: each row lacks that much, to the micro-token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use sqlx::PgPool;

use super::calls::{SHARDS, TEAMS};

/// An amount for each row of the organisation.
type Shards = [i64; SHARDS as usize];

/// By limit, key and shard.
pub(super) type Rows = BTreeMap<(String, String, i16), i64>;

/// The micro-tokens that the rows lack of their first balances.
pub(super) async fn lacking(pool: &PgPool) -> Rows {
    let rows = sqlx::query_as("select name, key, shard, -value from tollgate.durable");
    let rows: Vec<(String, String, i16, i64)> = rows.fetch_all(pool).await.unwrap();
    rows.into_iter().map(|(name, key, shard, lacking)| ((name, key, shard), lacking)).collect()
}

/// The lines that clients printed about their calls, before and after each step.
#[derive(Clone, Default)]
pub(super) struct Books {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

#[derive(Debug)]
struct Entry {
    user: u32,
    /// Which row of the organisation was charged.
    shard: usize,
    /// Its cost if it lapses: one of these.
    lapsed: BTreeSet<i64>,
    /// The cost that it may be settled at.
    settling: Option<i64>,
    is_settled: bool,
}

impl Books {
    /// A line such as `settling joined7 1200000`, or `granted joined7 user:shard`.
    pub(super) fn note(&self, line: &str) {
        let [what, id, number] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mut entries = self.entries.lock().unwrap();
        if let Some((user, shard)) = number.split_once(':') {
            let (user, shard) = (user.parse().unwrap(), shard.parse().unwrap());
            let entry = Entry { user, shard, lapsed: BTreeSet::from([0]), settling: None, is_settled: false };
            entries.insert(id.to_owned(), entry);
            return;
        }
        let number: i64 = number.parse().unwrap();
        let entry = entries.get_mut(id).unwrap();
        match what {
            "reporting" => drop(entry.lapsed.insert(number)),
            "reported" => entry.lapsed = BTreeSet::from([number]),
            "settling" => entry.settling = Some(number),
            "settled" => entry.is_settled = true,
            "lapsed" => entry.settling = None,
            other => panic!("{other}"),
        }
    }

    pub(super) fn settled(&self) -> usize {
        self.entries.lock().unwrap().values().filter(|entry| entry.is_settled).count()
    }

    /// Whether each row lacks what its calls cost. Where a client did not hear what became of a call, any of its costs
    /// may be true: they have so many digits that no wrong ones add up. So the row of a user tells which they were, and
    /// with it what the others lack.
    pub(super) fn judge(&self, lacking: &Rows) -> String {
        let entries = self.entries.lock().unwrap();
        let (mut settled, mut unknown) = (0_u32, 0_u32);
        // The costs of a user's calls in all, and the part in each shard.
        let mut sums = BTreeMap::<u32, BTreeMap<i64, Shards>>::new();
        for entry in entries.values() {
            let costs: BTreeSet<i64> = match (entry.is_settled, entry.settling) {
                (true, Some(cost)) => BTreeSet::from([cost]),
                (_, settling) => entry.lapsed.iter().copied().chain(settling).collect(),
            };
            settled += u32::from(entry.is_settled);
            unknown += u32::from(costs.len() > 1);
            let sums = sums.entry(entry.user).or_insert_with(|| BTreeMap::from([(0, Shards::default())]));
            let with = |(sum, shards): (&i64, &Shards), cost: &i64| {
                let mut shards = *shards;
                shards[entry.shard] += cost;
                (sum + cost, shards)
            };
            *sums = sums.iter().flat_map(|sum| costs.iter().map(move |cost| with(sum, cost))).collect();
            assert!(sums.len() < 1_000_000, "too much is unknown");
        }
        let lacks = |name: &str, key: &dyn ToString, shard| {
            let row = (name.to_owned(), key.to_string(), shard);
            lacking.get(&row).copied().unwrap_or(0)
        };
        let (mut org, mut teams) = (Shards::default(), BTreeMap::<u32, i64>::new());
        for (user, sums) in sums {
            let [lacks, of_window] = ["user", "daily"].map(|level| lacks(level, &user, 0));
            let calls = || entries.iter().filter(|(_, entry)| entry.user == user).collect::<Vec<_>>();
            let shards = sums.get(&lacks);
            let shards = shards.unwrap_or_else(|| panic!("user {user} lacks {lacks}, no sum of {:?}", calls()));
            assert_eq!(of_window, lacks, "window of user {user}");
            org.iter_mut().zip(shards).for_each(|(sum, lacks)| *sum += lacks);
            *teams.entry(user % TEAMS).or_default() += lacks;
        }
        for (team, sum) in teams {
            assert_eq!(lacks("team", &team, 0), sum, "team {team}");
        }
        for (shard, sum) in (0..).zip(org) {
            assert_eq!(lacks("org", &"acme", shard), sum, "shard {shard}");
        }
        let joined = entries.keys().filter(|id| id.starts_with("joined")).count();
        let by_gates = entries.len() - joined;
        format!("{by_gates} of gates, {joined} joined; {settled} settled, {unknown} outcomes not heard; all balance")
    }
}
