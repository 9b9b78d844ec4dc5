//! The functions decide the same under any settings of a session.

use sqlx::PgConnection;
use tollgate::migrate;

use super::asked::one;
use crate::teller::run;
use crate::world::World;

/// Sets of settings that anybody, the owner or a superuser can make, and that change how text is read or written, how
/// statements are understood and run, or whether they may write.
pub(super) const SETTINGS: &[&[&str]] = &[
    &["standard_conforming_strings = off", "escape_string_warning = off", "backslash_quote = off"],
    &["standard_conforming_strings = off", "escape_string_warning = on", "backslash_quote = on"],
    &["datestyle = 'SQL, DMY'", "intervalstyle = iso_8601", "timezone = 'Pacific/Chatham'", "bytea_output = escape"],
    &["datestyle = German", "intervalstyle = sql_standard", "timezone = '<x>-13:59'", "extra_float_digits = -15"],
    &["datestyle = 'Postgres, YMD'", "intervalstyle = postgres_verbose", "extra_float_digits = 3"],
    &["array_nulls = off", "transform_null_equals = on", "quote_all_identifiers = on", "xmloption = document"],
    &["client_encoding = LATIN1"],
    &["default_transaction_isolation = serializable", "default_transaction_deferrable = on"],
    &["default_transaction_isolation = 'repeatable read'", "row_security = off"],
    &["default_transaction_read_only = on"],
    &["check_function_bodies = off", "plan_cache_mode = force_generic_plan", "jit_above_cost = 0"],
    &[
        "plan_cache_mode = force_custom_plan",
        "enable_indexscan = off",
        "enable_seqscan = off",
        "from_collapse_limit = 1",
    ],
    &["plpgsql.extra_errors = 'all'", "plpgsql.variable_conflict = error"],
    &["plpgsql.variable_conflict = use_column", "search_path = ''"],
    &["plpgsql.variable_conflict = use_variable", "search_path = tollgate, pg_catalog", "work_mem = 64"],
];

/// The schema is made in such a session, too. A function is compiled under the settings of its first call, so each has
/// one of its own.
#[tokio::test]
async fn whatever_the_session_is_set_to_the_functions_decide_the_same() {
    let usual = told(&[]).await;
    for settings in SETTINGS.iter().filter(|settings| !settings.contains(&"default_transaction_read_only = on")) {
        assert_eq!(told(settings).await, usual, "{settings:?}");
    }
}

/// The answers to calls in a session under these settings; no answer holds an instant of now.
async fn told(settings: &[&str]) -> Vec<String> {
    let world = World::unmigrated().await;
    let mut conn = set(&world, settings).await;
    migrate::run(&mut conn).await.unwrap();
    let mut told = Vec::new();
    for sql in include_str!("settings.sql").split("\n\n") {
        if sql.starts_with("select") {
            told.push(one(&mut conn, sql).await);
        } else {
            run(&mut conn, sql).await;
        }
    }
    told
}

/// A session under these settings. Some are a superuser's.
pub(super) async fn set(world: &World, settings: &[&str]) -> PgConnection {
    let mut conn = world.admin().await;
    run(&mut conn, "set search_path = pg_catalog").await;
    // PostgreSQL 19 has one form of strings, and so no settings of it.
    let has_forms = conn.server_version_num().is_none_or(|version| version < 190_000);
    let of_forms =
        |setting: &str| ["standard_conforming", "escape_string"].iter().any(|form| setting.starts_with(form));
    for setting in settings.iter().filter(|setting| has_forms || !of_forms(setting)) {
        run(&mut conn, &format!("set {setting}")).await;
    }
    conn
}
