//! Faults of the set-up: of tables, rights, a pooler, or the number of parts.

use sqlx::error::DatabaseError;

use crate::error::SetupFault;
use crate::store::pooler::{is_misprepared, routine};
use crate::store::session;

/// The fault of the set-up that causes a driver's error, if one does.
pub(crate) fn setup_fault(error: &sqlx::Error) -> Option<SetupFault> {
    let told = error.as_database_error()?;
    Some(match &*told.code()? {
        "3F000" | "42P01" | "42703" | "42883" => SetupFault::Schema,
        _ if is_misprepared(told) => SetupFault::NamedStatements,
        _ if is_wrong_part(told) => SetupFault::WrongParts,
        _ if is_row_security(told) => SetupFault::RowSecurity,
        "42501" => SetupFault::Rights,
        _ if session::is_role(error) => SetupFault::Rights,
        _ => return None,
    })
}

/// Whether row security hides rows, or may. A statement of ours reports it by a text that is no boolean. PostgreSQL
/// reports it by its own checks: of rows to write, and of rows to read under `row_security = off`.
fn is_row_security(told: &(dyn DatabaseError + 'static)) -> bool {
    match told.code().as_deref() {
        Some("22P02") => told.message().contains("\"row security hides rows of tollgate."),
        Some("42501") => matches!(routine(told), Some("ExecWithCheckOptions" | "check_enable_rls")),
        _ => false,
    }
}

/// Whether a row was inserted in a part that the tables do not have. Citus names the constraint only in the message.
fn is_wrong_part(error: &(dyn DatabaseError + 'static)) -> bool {
    let names_it = |text: &str| {
        ["ephemeral_part", "durable_part", "calls_part"].iter().any(|constraint| text.contains(constraint))
    };
    error.code().as_deref() == Some("23514") && (error.constraint().is_some_and(names_it) || names_it(error.message()))
}
