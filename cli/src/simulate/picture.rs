//! Trials side by side as an SVG document: the balance under each limit above the calls, all on the same axes.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use tollgate::SECOND;

use super::run::TrialReport;
use super::tally::{Bin, Series};
use crate::output::{about, printable, span};
use crate::svg::{self, Area, Drawn, GRANTED, REFUSED, TOKENS, number};

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws trials into a file.
pub(super) fn draw(reports: &[TrialReport], file: &Path) -> io::Result<()> {
    svg::write(file, |document| draw_into(document, reports))
}

fn draw_into(document: &mut String, reports: &[TrialReport]) -> Drawn {
    let axes = Axes::of(reports);
    let rows = 1 + reports.iter().map(|report| report.limits.len()).max().unwrap_or(0);
    let pixels = |count: usize, each: u32| u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(each);
    let size = (pixels(reports.len(), WIDTH), TITLE + pixels(rows, HEIGHT));
    let root = SVGBackend::with_string(document, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (report, area) in reports.iter().zip(root.split_evenly((1, reports.len().max(1)))) {
        axes.trial(report, &area, rows)?;
    }
    root.present()
}

/// The axes that all trials share.
struct Axes {
    /// The unit of time: how many seconds it has, and its name.
    unit: (f64, &'static str),
    /// How long the longest trial is, in that unit.
    span: f64,
    /// From the deepest debt to the largest capacity.
    tokens: Range<f64>,
    /// The most calls in any bin.
    calls: f64,
}

impl Axes {
    fn of(reports: &[TrialReport]) -> Self {
        let series = || reports.iter().map(|report| &report.series);
        let seconds = series().map(Series::length).max().unwrap_or(SECOND).as_secs_f64();
        let unit = match seconds {
            ..=120.0 => (1.0, "s"),
            ..=7_200.0 => (60.0, "min"),
            _ => (3_600.0, "h"),
        };
        let levels = || series().flat_map(|series| &series.bins).flat_map(|bin| &bin.levels);
        let lowest = levels().map(|level| about(level.low)).fold(0.0, f64::min);
        let highest = levels().map(|level| about(level.high)).fold(0.0, f64::max);
        // A plot needs an axis even where nothing can be had at once and nothing is owed.
        let highest = if highest > lowest { highest } else { lowest + 1.0 };
        let busiest = |series: &Series| series.bins.iter().map(|bin| f64::from(bin.calls())).fold(1.0, f64::max);
        let calls = series().map(busiest).fold(0.0, f64::max);
        Self { unit, span: seconds / unit.0, tokens: lowest..highest, calls }
    }

    fn trial(&self, report: &TrialReport, area: &Area<'_>, rows: usize) -> Drawn {
        let area = area.titled(&printable(&report.label), ("sans-serif", 18))?;
        let parts = area.split_evenly((rows, 1));
        for (place, (caption, part)) in report.captions().zip(&parts).enumerate() {
            self.balance(&caption, &report.series, place, part)?;
        }
        // Below the balances, also where another trial has more of them.
        parts.last().map_or(Ok(()), |part| self.calls(&report.series, part))
    }

    /// A balance: at each bin from the most to the least, which is a line wherever it changes slowly.
    fn balance(&self, caption: &str, series: &Series, place: usize, area: &Area<'_>) -> Drawn {
        let mut plot = self.plot(self.tokens.clone(), &printable(caption), area)?;
        let levels = self.bins(series).map(|(from, _, bin)| (from, bin.levels[place]));
        let line = levels.flat_map(|(at, level)| [(at, about(level.high)), (at, about(level.low))]);
        plot.draw_series([PathElement::new(line.collect::<Vec<_>>(), TOKENS)])?;
        Ok(())
    }

    /// Calls in each bin: the refused ones on top of the granted ones.
    fn calls(&self, series: &Series, area: &Area<'_>) -> Drawn {
        let wide = span(Duration::from_micros(series.width_us));
        let mut plot =
            self.plot(0.0..self.calls, &format!("calls in each {wide}: granted, and refused on top"), area)?;
        for (from, to, bin) in self.bins(series) {
            let [granted, all] = [bin.granted, bin.calls()].map(f64::from);
            for (low, high, color) in [(0.0, granted, GRANTED), (granted, all, REFUSED)] {
                if high > low {
                    plot.draw_series([Rectangle::new([(from, low), (to, high)], color.filled())])?;
                }
            }
        }
        Ok(())
    }

    /// Bins, each with its beginning and its end on the time axis.
    fn bins<'s>(&self, series: &'s Series) -> impl Iterator<Item = (f64, f64, &'s Bin)> {
        let width = width(series) / self.unit.0;
        let edge = move |place: u32| f64::from(place) * width;
        (0..).zip(&series.bins).map(move |(place, bin)| (edge(place), edge(place + 1), bin))
    }

    fn plot<'a, 'b>(&self, y: Range<f64>, caption: &str, area: &'a Area<'b>) -> Drawn<Plot<'a, 'b>> {
        let (_, unit) = self.unit;
        let mut plot = svg::chart(area, caption).build_cartesian_2d(0.0..self.span, y)?;
        plot.configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(5)
            .y_labels(5)
            .x_label_formatter(&|time| format!("{} {unit}", number(*time)))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        Ok(plot)
    }
}

/// The seconds of a bin.
fn width(series: &Series) -> f64 {
    Duration::from_micros(series.width_us).as_secs_f64()
}

/// Pixels of a trial.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 180;
const TITLE: u32 = 30;
