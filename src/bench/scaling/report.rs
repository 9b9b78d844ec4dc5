use std::fmt;

use super::advice::Advice;
use super::arithmetic::Arithmetic;
use super::summary::Summary;
use super::{Conditions, Figures, Measurements, Model, Point, Quantity, Subject};
use crate::bench::table::{Table, number};

/// Measured points, what a model of them says, and what it says of more: the figures of `docs/scaling.md`.
///
/// Nothing in it but the measurements is measured: it is the same whenever it is made from the same ones.
#[derive(Clone, Debug)]
pub struct ScalingReport {
    measurements: Measurements,
    model: Model,
    predicted: Vec<Figures>,
}

/// A figure that the model is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Judged {
    /// Whose it is.
    pub subject: Subject,
    /// What it counts.
    pub quantity: Quantity,
    /// What was measured.
    pub measured: f64,
    /// What the model says.
    pub predicted: f64,
}

impl Judged {
    /// By how much of the measured figure the model is off: 0.1 is too high by a tenth.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Whether that is more than a fifth.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.error().abs() > TOLERANCE
    }
}

impl ScalingReport {
    /// Takes the model's prices from the points that calibrate, and has it predict all.
    #[must_use]
    pub fn new(measurements: Measurements) -> Self {
        let model = Model::of(&measurements);
        let predict = |point: &Point| model.predict(point.subject, Conditions::of(&point.measured));
        let predicted = measurements.points.iter().map(predict).collect();
        Self { measurements, model, predicted }
    }

    /// The measured points.
    #[must_use]
    pub fn measurements(&self) -> &Measurements {
        &self.measurements
    }

    /// All figures that the model is judged by: decisions per second, the server's processor time, bytes of log, and bytes of
    /// tables. Of the points that calibrate, too.
    pub fn judged(&self) -> impl Iterator<Item = Judged> {
        self.pairs()
            .flat_map(|(point, predicted)| JUDGED.iter().filter_map(move |&quantity| judge(point, predicted, quantity)))
    }

    fn pairs(&self) -> impl Iterator<Item = (&Point, &Figures)> {
        self.measurements.points.iter().zip(&self.predicted)
    }

    /// A line for each point of a kind, with measured and predicted figures beside each other.
    fn table(&self, first: &str, quantities: &[(Quantity, &'static str)], of: fn(&Subject) -> bool) -> Table {
        let mut headings = vec![first];
        for (_, name) in quantities {
            headings.extend([*name, "model", "off %"]);
        }
        let lines = self.pairs().filter(|(point, _)| of(&point.subject)).map(|(point, predicted)| {
            let mark = if point.subject.calibrates() { " *" } else { "" };
            let mut line = vec![format!("{}{mark}", point.subject)];
            for &(quantity, _) in quantities {
                let measured = point.measured.get(&quantity).map_or_else(none, |figure| number(*figure));
                let [model, off] = judge(point, predicted, quantity).map_or_else(
                    || [none(), none()],
                    |judged| [number(judged.predicted), format!("{:+.0}", judged.error() * 100.0)],
                );
                line.extend([measured, model, off]);
            }
            line
        });
        Table::new(&headings, 1, lines)
    }

    fn write_judgement(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held_out = || self.judged().filter(|judged| !judged.subject.calibrates());
        let off: Vec<_> = held_out().filter(Judged::is_off).collect();
        let all = held_out().count();
        writeln!(f, "\nOf {all} figures that were held out, {} are within 20 %.", all - off.len())?;
        if off.is_empty() {
            return Ok(());
        }
        writeln!(f, "These are not:\n")?;
        for judged in off {
            let Judged { subject, quantity, measured, predicted } = judged;
            let [measured, predicted] = [measured, predicted].map(number);
            let off = judged.error() * 100.0;
            writeln!(f, "- {subject}: {quantity}, {measured} measured, {predicted} by the model ({off:+.0} %)")?;
        }
        Ok(())
    }
}

impl fmt::Display for ScalingReport {
    /// Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurements { machine, rounds, seconds, .. } = &self.measurements;
        writeln!(f, "## What to use\n\n{}", Advice { measurements: &self.measurements })?;
        writeln!(f, "## What one server gives\n")?;
        writeln!(
            f,
            "{machine}\n- rounds: {rounds}, of turns of {seconds} s; of the half in which others had least, the one with the median rate"
        )?;
        let mut others: Vec<_> = self
            .measurements
            .points
            .iter()
            .filter_map(|point| point.measured.get(&Quantity::Others).copied())
            .collect();
        others.sort_by(f64::total_cmp);
        if let (Some(least), Some(median), Some(most)) = (others.first(), others.get(others.len() / 2), others.last()) {
            let [least, median, most] = [least, median, most].map(|share| share * 100.0);
            writeln!(
                f,
                "- others on the machine had {median:.0} % of its processors, by the point from {least:.0} to {most:.0} %"
            )?;
        }
        writeln!(f, "\n{}", Summary { measurements: &self.measurements })?;
        writeln!(f, "### Prices\n\n{}", self.model)?;
        writeln!(f, "### A gate, measured and by the model\n")?;
        let rates = [
            (Quantity::PerSecond, "decisions/s"),
            (Quantity::ServerMicros, "server µs"),
            (Quantity::WalBytes, "log bytes"),
        ];
        writeln!(f, "{}", self.table("callers", &rates, |subject| matches!(subject, Subject::Gate { .. })))?;
        writeln!(f, "### Transactions with a `Limiter`, measured and by the model\n")?;
        writeln!(f, "{}", self.table("clients", &rates[..2], |subject| matches!(subject, Subject::Joined { .. })))?;
        writeln!(f, "### Tables, measured and by the model\n")?;
        let sizes = [(Quantity::HeapBytes, "table, bytes/row"), (Quantity::IndexBytes, "index, bytes/row")];
        writeln!(f, "{}", self.table("rows", &sizes, |subject| matches!(subject, Subject::Rows { .. })))?;
        let upkeep = [(Quantity::WalBytes, "log bytes/row"), (Quantity::RowMicros, "µs/row")];
        let is_upkeep = |subject: &Subject| {
            matches!(subject, Subject::Sweep { .. } | Subject::Vacuum { .. } | Subject::Freeze { .. })
        };
        write!(f, "{}", self.table("work", &upkeep, is_upkeep))?;
        self.write_judgement(f)?;
        write!(f, "\n{}", Arithmetic::new(&self.measurements, &self.model))
    }
}

/// Measured beside predicted, if both are there and the model is judged by it.
fn judge(point: &Point, predicted: &Figures, quantity: Quantity) -> Option<Judged> {
    let (measured, predicted) = (*point.measured.get(&quantity)?, *predicted.get(&quantity)?);
    Some(Judged { subject: point.subject, quantity, measured, predicted })
}

fn none() -> String {
    "–".to_owned()
}

/// How far a prediction may be off.
const TOLERANCE: f64 = 0.2;

const JUDGED: [Quantity; 5] =
    [Quantity::PerSecond, Quantity::ServerMicros, Quantity::WalBytes, Quantity::HeapBytes, Quantity::IndexBytes];
