use sqlx::{PgConnection, PgTransaction};

/// A proof that a connection is in a transaction: a transaction or savepoint of sqlx, or the caller's assertion by
/// [`BegunByHand`].
///
/// A connection alone proves nothing, and does not compile:
///
/// ```compile_fail,E0277
/// # use tollgate::{Limit, Limiter, MINUTE};
/// # const LIMIT: Limit = Limit::token_bucket("limit", 1, MINUTE);
/// # async fn take(mut conn: sqlx::PgConnection) {
/// let _ = Limiter::new().consume(&mut conn, LIMIT.global()).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not prove that there is a transaction",
    note = "pass `&mut tx` of `begin().await`; where `begin` was executed by hand, `&mut BegunByHand(&mut conn)`"
)]
pub trait InTransaction: sealed::Connected {}

/// A connection on which the caller asserts to have begun a transaction by hand.
///
/// sqlx does not know of such a transaction, so the limiter asks PostgreSQL. The statements that lock, write or set
/// something find out on the way; before the limiter inserts rows, it takes two more round trips. Outside of a
/// transaction a call that would write fails with [`Error::NotInTransaction`](crate::Error::NotInTransaction), and
/// changes nothing.
///
/// ```
/// # use tollgate::{BegunByHand, Limit, Limiter, MINUTE};
/// # const LIMIT: Limit = Limit::token_bucket("limit", 1, MINUTE);
/// # async fn take(mut conn: sqlx::PgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// sqlx::raw_sql("begin").execute(&mut conn).await?;
/// Limiter::new().consume(&mut BegunByHand(&mut conn), LIMIT.global()).await?.granted()?;
/// sqlx::raw_sql("commit").execute(&mut conn).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BegunByHand<'c>(pub &'c mut PgConnection);

impl InTransaction for PgTransaction<'_> {}
impl InTransaction for BegunByHand<'_> {}
impl<T: InTransaction> InTransaction for &mut T {}

mod sealed {
    use super::{BegunByHand, PgConnection, PgTransaction};

    pub trait Connected: Send {
        fn connection(&mut self) -> &mut PgConnection;
    }

    impl Connected for PgTransaction<'_> {
        fn connection(&mut self) -> &mut PgConnection {
            self
        }
    }

    impl Connected for BegunByHand<'_> {
        fn connection(&mut self) -> &mut PgConnection {
            self.0
        }
    }

    impl<T: Connected> Connected for &mut T {
        fn connection(&mut self) -> &mut PgConnection {
            T::connection(self)
        }
    }
}
