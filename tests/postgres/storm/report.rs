//! The figures of a storm.

use std::collections::BTreeMap;

use super::faults::Fault;
use crate::ROOT;

pub(super) struct Report {
    pub(super) seconds: u64,
    pub(super) seed: u64,
    pub(super) balanced: String,
    pub(super) used: String,
    pub(super) schedules: u64,
    /// Calls on rates that memory granted, that the database granted, and that were refused.
    pub(super) counts: [u64; 3],
    pub(super) faults: BTreeMap<Fault, u64>,
}

impl Report {
    /// Prints the figures, and writes them into the guide where `TOLLGATE_STORM_WRITE` is set.
    pub(super) fn tell(&self) {
        let table = self.table();
        println!("{table}");
        if std::env::var_os("TOLLGATE_STORM_WRITE").is_some() {
            let guide = format!("{ROOT}/docs/guarantees.md");
            let text = std::fs::read_to_string(&guide).unwrap();
            let (before, rest) = text.split_once(BEGIN).unwrap();
            let (_, after) = rest.split_once(END).unwrap();
            std::fs::write(guide, format!("{before}{BEGIN}\n\n{}\n{table}\n{END}{after}", self.command())).unwrap();
        }
    }

    fn command(&self) -> String {
        format!("```console\n$ ./dev storm --minutes {} --seed {}\n```\n", self.seconds / 60, self.seed)
    }

    fn table(&self) -> String {
        let Self { balanced, used, schedules, counts: [memory, database, refused], .. } = self;
        let faults: Vec<_> = self.faults.iter().map(|(fault, times)| format!("{} {times}", fault.name())).collect();
        let decisions = format!(
            "{}: {memory} granted from memory, {database} by the database, {refused} refused",
            memory + database + refused
        );
        let rows = [
            ("decisions on rates", decisions),
            ("of the bound, the worst key used", used.clone()),
            ("calls on budgets", balanced.clone()),
            ("orders drawn", schedules.to_string()),
            ("faults", format!("{}: {}", self.faults.values().sum::<u64>(), faults.join(", "))),
        ];
        rows.iter().fold("| | |\n| --- | --- |\n".to_owned(), |table, (what, figure)| {
            format!("{table}| {what} | {figure} |\n")
        })
    }
}

impl Fault {
    /// `AnswerLost` as `answer lost`.
    fn name(self) -> String {
        let (mut name, camel) = (String::new(), format!("{self:?}"));
        for c in camel.chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push(' ');
            }
            name.extend(c.to_lowercase());
        }
        name
    }
}

const BEGIN: &str = "<!-- written by ./dev storm -->";
const END: &str = "<!-- end -->";
