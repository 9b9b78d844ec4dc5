//! A customer: a key, and longer keys that it is a part of, over all limits.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::{Key, Overrides, Storage};

use crate::database::read_only;
use crate::error::CommandError;
use crate::parts::Away;
use crate::storage;

/// Which keys are the customer's.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// The key, and those that begin with it.
    Begins,
    /// Also those that have it as any other part. This reads all rows.
    Anywhere,
}

/// At most so many limits and keys that a customer has rows or overrides of, in their order.
pub(crate) async fn places(
    conn: &mut PgConnection,
    (key, reach): (&Key, Reach),
    (most, timeout): (u32, Duration),
) -> Result<Vec<(String, Key)>, CommandError> {
    let mut away = Away::of_tables(conn, timeout).await?;
    let mut places = BTreeSet::new();
    for part in away.parts() {
        for table in [storage::table(Storage::Durable), storage::table(Storage::Ephemeral)] {
            let mut tx = read_only(conn, timeout).await?;
            let sql = if matches!(reach, Reach::Begins) { BEGINS } else { ANYWHERE };
            let sql = sql.replace(storage::table(Storage::Durable), table);
            let rows = sqlx::query_as::<_, (String, String)>(AssertSqlSafe(sql));
            let rows = rows.bind(part).bind(key.as_str()).bind(i64::from(most)).persistent(false);
            for (name, found) in away.answer(part, rows.fetch_all(&mut *tx).await)?.into_iter().flatten() {
                places.insert((name, Key::try_from(found)?));
            }
        }
    }
    let said = Overrides::read(&mut *read_only(conn, timeout).await?).await?.all();
    places.extend(said.into_iter().filter_map(|said| Some((said.limit, said.key?))));
    places.retain(|(_, found)| reach.has(found.as_str(), key.as_str()));
    away.check()?;
    Ok(places.into_iter().take(most as usize).collect())
}

impl Reach {
    /// Whether a key is the customer's: a `|` that is escaped separates no parts.
    fn has(self, found: &str, key: &str) -> bool {
        let (found, key) = (format!("|{found}|"), format!("|{key}|"));
        let is_part = |(place, _): (usize, &str)| {
            let before = found[..place].bytes().rev().take_while(|byte| *byte == b'\\').count();
            before % 2 == 0 && (place == 0 || matches!(self, Self::Anywhere))
        };
        found.match_indices(&key).any(is_part)
    }
}

const BEGINS: &str = concat!(include_str!("../limit_names.sql"), include_str!("places.sql"));

const ANYWHERE: &str = "select distinct r.name, r.key
                          from tollgate.durable r
                         where r.part = $1 and pg_catalog.strpos('|' || r.key || '|', '|' || $2 || '|') > 0
                         order by r.name, r.key
                         limit $3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_customers_if_one_of_its_parts_is() {
        let both = |found: &str, key: &str| [Reach::Begins, Reach::Anywhere].map(|reach| reach.has(found, key));
        assert_eq!(both("42", "42"), [true, true]);
        assert_eq!(both("42|7", "42"), [true, true]);
        assert_eq!(both("7|42", "42"), [false, true]);
        assert_eq!(both("7|42|1", "42|1"), [false, true]);
        assert_eq!(both("421|7", "42"), [false, false]);
        assert_eq!(both(r"7\|42", "42"), [false, false]);
        assert_eq!(both(r"7\\|42", "42"), [false, true]);
    }
}
