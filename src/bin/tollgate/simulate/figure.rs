use std::time::Duration;

use tollgate::simulate::{Bin, Finding, RuleOutcome, Series, short};
use tollgate::{SECOND, Tokens};

/// What the plots show, in the terminal and in the picture alike: all scenes on the same axes.
#[derive(Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) panels: Vec<Panel>,
    /// How long the longest scene is.
    pub(super) span: Duration,
    /// The least and the most tokens that any balance had; nothing and a capacity, unless there were debts.
    pub(super) tokens: [f64; 2],
    /// The most calls a second in any column.
    pub(super) busiest: f64,
}

/// One scene.
#[derive(Debug, PartialEq)]
pub(super) struct Panel {
    pub(super) label: String,
    /// The balance under each limit.
    pub(super) balances: Vec<Balance>,
    /// Granted and refused calls a second, over columns of equal width.
    pub(super) columns: Vec<[f64; 2]>,
}

/// A balance over time.
#[derive(Debug, PartialEq)]
pub(super) struct Balance {
    /// Of which limit.
    pub(super) label: String,
    /// Seconds since the beginning, and the least and the most tokens until the next point.
    pub(super) points: Vec<[f64; 3]>,
}

impl Figure {
    /// All scenes, over as many columns as the longest of them is to have. Where nobody called, there is nothing to show.
    pub(super) fn of(findings: &[Finding], columns: usize) -> Self {
        let spans = findings.iter().filter_map(|finding| finding.outcome.series.as_ref()).map(length);
        let span = spans.max().unwrap_or(SECOND);
        let panels: Vec<_> = findings.iter().map(|finding| Panel::of(finding, span, columns)).collect();
        let points = || panels.iter().flat_map(|panel| &panel.balances).flat_map(|balance| &balance.points);
        let lowest = points().map(|[_, low, _]| *low).fold(0.0, f64::min);
        let capacities =
            findings.iter().flat_map(|finding| &finding.outcome.rules).filter_map(|rule| rule.limit.capacity);
        let highest = capacities.map(whole).fold(0.0, f64::max);
        let busiest = panels.iter().flat_map(|panel| &panel.columns).map(|[granted, refused]| granted + refused);
        let busiest = busiest.fold(0.0, f64::max);
        // Where nothing can be had at once and nothing is owed, an axis is needed all the same.
        let highest = if highest > lowest { highest } else { lowest + 1.0 };
        Self { span, tokens: [lowest, highest], busiest, panels }
    }
}

impl Panel {
    fn of(finding: &Finding, span: Duration, columns: usize) -> Self {
        let series = finding.outcome.series.as_ref();
        let balance = |(place, rule)| Balance {
            label: label(rule),
            points: series.map(|series| points(series, place)).unwrap_or_default(),
        };
        let columns = series.map(|series| resampled(series, share(columns, length(series), span)));
        Self {
            label: plain(&finding.label),
            balances: finding.outcome.rules.iter().enumerate().map(balance).collect(),
            columns: columns.unwrap_or_default(),
        }
    }
}

/// The name of a limit, and its definition unless that is the name.
fn label(rule: &RuleOutcome) -> String {
    let (name, definition) = (&rule.limit.name, &rule.definition);
    let rest = definition.strip_prefix(name.as_str());
    // The definition says whom it is for as well, the name does not.
    let is_name = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", for all"));
    if is_name { definition.clone() } else { format!("{}: {definition}", plain(name)) }
}

/// A name or a key without what would steer a terminal, or be no XML.
pub(super) fn plain(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}'), "\u{fffd}")
}

fn points(series: &Series, rule: usize) -> Vec<[f64; 3]> {
    let width = series.width.as_secs_f64();
    let point = |(place, bin): (usize, &Bin)| {
        let level = bin.levels.get(rule)?;
        Some([float(place as u64) * width, whole(level.low), whole(level.high)])
    };
    series.bins.iter().enumerate().filter_map(point).collect()
}

/// Calls a second over so many columns: each of them the mean of the bins that it covers, of one at least.
fn resampled(series: &Series, columns: usize) -> Vec<[f64; 2]> {
    let bins = &series.bins;
    let column = |column: usize| {
        let from = column * bins.len() / columns;
        let covered = &bins[from..((column + 1) * bins.len() / columns).max(from + 1)];
        let seconds = float(covered.len() as u64) * series.width.as_secs_f64();
        let [granted, refused] =
            covered.iter().fold([0, 0], |[granted, refused], bin| [granted + bin.granted, refused + bin.refused]);
        [granted, refused].map(|calls| float(calls) / seconds)
    };
    (0..columns).map(column).collect()
}

fn length(series: &Series) -> Duration {
    series.width * u32::try_from(series.bins.len()).unwrap_or(u32::MAX)
}

/// As many of the columns as the part is of the whole, one at least.
fn share(columns: usize, part: Duration, whole: Duration) -> usize {
    let share = part.as_secs_f64() / whole.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the number of columns")]
    let columns = (float(columns as u64) * share).round() as usize;
    columns.max(1)
}

/// An instant on an axis, which is not read to the microsecond.
pub(super) fn time(seconds: f64) -> String {
    let unit = match seconds {
        6_000.0.. => 60.0,
        10.0.. => 1.0,
        _ => 1e-3,
    };
    match Duration::try_from_secs_f64((seconds / unit).round() * unit).unwrap_or_default() {
        Duration::ZERO => "0s".to_owned(),
        span => short(Duration::from_micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))),
    }
}

/// A number on an axis: to two decimals, without those that say nothing.
pub(super) fn number(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "plots are not read to the micro-token")]
fn whole(tokens: Tokens) -> f64 {
    tokens.micros() as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "plots are not read to the last of so many calls")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these numbers are exact")]
mod tests {
    use tollgate::simulate::{Preset, Simulation, Traffic, arrivals};

    use super::*;

    #[test]
    fn all_scenes_share_their_axes() {
        let figure = Figure::of(&findings("dashboard"), 64);
        assert_eq!((figure.span, figure.tokens), (10 * SECOND, [0.0, 10.0]));
        let [ten, five] = &figure.panels[..] else { panic!("{figure:?}") };
        assert_eq!(
            (ten.label.as_str(), five.balances[0].label.as_str()),
            ("capacity 10", "dashboard: token bucket 5 per 1s")
        );
        assert_eq!(ten.balances[0].points.len(), 320);
        assert_eq!(ten.balances[0].points[..2], [[0.0, 0.0, 10.0], [0.03125, 0.15625, 0.3125]]);
        assert_eq!(five.balances[0].points[160], [5.0, 5.0, 5.0], "full between bursts");
    }

    #[test]
    fn columns_are_calls_a_second() {
        let figure = Figure::of(&findings("dashboard"), 64);
        // Ten calls in a column of ten seconds' 64th part.
        assert_eq!(figure.busiest, 64.0);
        let shown = |panel: &Panel| {
            let busy = panel.columns.iter().enumerate().filter(|(_, column)| **column != [0.0, 0.0]);
            busy.map(|(place, column)| (place, *column)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&figure.panels[0]), [0, 12, 25, 38, 51].map(|place| (place, [64.0, 0.0])));
        assert_eq!(shown(&figure.panels[1]), [0, 12, 25, 38, 51].map(|place| (place, [32.0, 32.0])));
    }

    #[test]
    fn whoever_calls_longer_has_more_columns() {
        let figure = Figure::of(&findings("retries"), 64);
        let columns: Vec<_> = figure.panels.iter().map(|panel| panel.columns.len()).collect();
        let [never, told, stubborn] = columns[..] else { panic!("{columns:?}") };
        assert!(told == 64 && never < stubborn && stubborn < told, "{columns:?}");
        // However many bins a column covers, no call is shown twice or left out.
        for (panel, finding) in figure.panels.iter().zip(findings("retries")) {
            let seconds =
                length(finding.outcome.series.as_ref().unwrap()).as_secs_f64() / float(panel.columns.len() as u64);
            let shown: f64 = panel.columns.iter().map(|[granted, refused]| (granted + refused) * seconds).sum();
            assert!((shown / float(finding.outcome.tries) - 1.0).abs() < 0.05, "{shown} of {}", finding.outcome.tries);
        }
    }

    #[test]
    fn debts_are_below_the_axis_and_nobody_called_is_an_empty_figure() {
        assert_eq!(Figure::of(&findings("queue"), 64).tokens, [-30.0, 5.0]);
        let scenes: Vec<_> = "queue".parse::<Preset>().unwrap().scenes();
        let nobody = tollgate::simulate::side_by_side(&scenes, []).unwrap();
        let figure = Figure::of(&nobody, 64);
        assert_eq!((figure.span, figure.tokens, figure.busiest), (SECOND, [0.0, 5.0], 0.0));
        assert!(figure.panels.iter().all(|panel| panel.columns.is_empty() && panel.balances[0].points.is_empty()));
    }

    #[test]
    fn few_bins_are_spread_over_many_columns() {
        let rule = "token_bucket rate=5 per=1s".parse().unwrap();
        let calls = arrivals(&[Traffic::burst(3, SECOND).lasting(SECOND)], 1).unwrap();
        let outcome = Simulation::new([rule]).run(calls).unwrap();
        let series = outcome.series.unwrap();
        assert_eq!((series.bins.len(), resampled(&series, 4)), (1, vec![[3_000.0, 0.0]; 4]), "three in a millisecond");
    }

    #[test]
    fn a_limit_is_labelled_by_its_name_unless_that_is_its_definition() {
        for (text, shown) in [
            ("token_bucket rate=5 per=1s", "token bucket 5 per 1s"),
            ("token_bucket rate=5 per=1s global", "token bucket 5 per 1s, for all together"),
            ("token_bucket rate=5 per=1s name=token", "token: token bucket 5 per 1s"),
        ] {
            let outcome = Simulation::new([text.parse().unwrap()]).run([]).unwrap();
            assert_eq!(label(&outcome.rules[0]), shown);
        }
    }

    #[test]
    fn axes_are_labelled_for_people() {
        assert_eq!([0.0, 0.0625, 2.5, 15.375, 90.0, 21_600.0].map(time), ["0s", "63ms", "2.5s", "15s", "1m 30s", "6h"]);
        assert_eq!([0.0, -12.5, 0.126, 1e6].map(number), ["0", "-12.5", "0.13", "1000000"]);
        assert_eq!(plain("a\u{1b}[2J\n"), "a\u{fffd}[2J\u{fffd}");
    }

    fn findings(preset: &str) -> Vec<Finding> {
        preset.parse::<Preset>().unwrap().run(1).unwrap()
    }
}
