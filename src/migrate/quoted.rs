//! Names, texts and the search path in SQL that is made as text.

/// A text as a literal of SQL. It means the same wherever it stands: between dollar quotes of any tag, whatever
/// `standard_conforming_strings` is, and where psql looks for its variables.
pub(super) fn literal(text: &str) -> String {
    let escaped = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c.to_string(),
        c if c.is_ascii() => format!("\\u{:04x}", u32::from(c)),
        // The server may not know these by number, and none of them ends a quote.
        c => c.to_string(),
    };
    format!("E'{}'", text.chars().map(escaped).collect::<String>())
}

/// Statements between which every name without a schema is one of `pg_catalog`, and the path of the session before and
/// after them. Nothing in them can be of the session's own path, which may have strangers before `pg_catalog`.
pub(super) fn in_our_path(statements: &str) -> String {
    format!("do $$ begin {ENTER} end $$; {statements}; do $$ begin {LEAVE} end $$")
}

/// [`ENTER`] or [`LEAVE`] for a whole transaction. It keeps the path of the session elsewhere than statements inside of
/// it do.
pub(super) fn of_transaction(statements: &str) -> String {
    statements.replace("tollgate.path", "tollgate.path_before")
}

/// Sets our search path until [`LEAVE`], or until the end of the transaction, in PL/pgSQL.
pub(super) const ENTER: &str = "\
    perform pg_catalog.set_config('tollgate.path', pg_catalog.current_setting('search_path'), true);
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);";

pub(super) const LEAVE: &str =
    "perform pg_catalog.set_config('search_path', pg_catalog.current_setting('tollgate.path'), true);";
