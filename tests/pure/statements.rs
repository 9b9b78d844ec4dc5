//! The statements, as texts.

use std::path::Path;

use crate::documents::{ROOT, files, read};

/// Citus 13.2 and 14.0 take `set value = list[1]` for the assignment of an element. The worker crashes, and loses its
/// ephemeral rows. Inside of parentheses, as in `coalesce(list[1], value)`, a subscript does no harm.
#[test]
fn no_statement_sets_a_column_to_an_element_of_an_array() {
    let fails = ["update t set a = 1, v = list[1]", "update t set v = ($3)[f(b, $2)]::int8 where a[1] = 2"];
    assert!(fails.iter().all(|sql| sets_an_element(sql)));
    let runs = "update t set v = coalesce(l[1], v), l = $5::int8[], m = array[1] from a where b[1] = 2";
    assert!(!sets_an_element(runs));
    let folders = ["src", "cli/src", "migrations"].map(|folder| files(&Path::new(ROOT).join(folder), "sql"));
    for path in folders.into_iter().flatten() {
        assert!(!sets_an_element(&read(&path)), "{}", path.display());
    }
}

/// Whether an assignment behind a `set` has a subscript outside of parentheses.
fn sets_an_element(sql: &str) -> bool {
    let without_comments: String =
        sql.lines().filter_map(|line| line.split("--").next()).fold(String::new(), |all, line| all + line + " ");
    let sql = without_comments.to_lowercase().replace("[]", "").replace("array[", "");
    sql.split(" set ").skip(1).any(|rest| {
        let mut depth = 0_i32;
        let outside: String = rest
            .chars()
            .filter(|c| {
                depth += i32::from(*c == '(') - i32::from(*c == ')');
                depth == 0
            })
            .collect();
        let ends = [" from ", " where ", " returning ", ";"];
        let assigned = ends.iter().filter_map(|end| outside.find(end)).min().map_or(&*outside, |end| &outside[..end]);
        assigned.contains('[')
    })
}
