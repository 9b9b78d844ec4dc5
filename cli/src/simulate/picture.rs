//! Trials one below the other as an SVG document: the balance under each limit above the calls, over the same time.

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
use crate::svg::{self, Area, Drawn, FONT, GRANTED, REFUSED, TOKENS, WIDTH, number};

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws trials into a file.
pub(super) fn draw(reports: &[TrialReport], file: &Path) -> io::Result<()> {
    svg::write(file, |document| draw_into(document, reports))
}

fn draw_into(document: &mut String, reports: &[TrialReport]) -> Drawn {
    let axes = Axes::of(reports);
    let height = |report: &TrialReport| TITLE + HEIGHT * (1 + u32::try_from(report.limits.len()).unwrap_or(u32::MAX));
    let root = SVGBackend::with_string(document, (WIDTH, reports.iter().map(height).sum())).into_drawing_area();
    root.fill(&WHITE)?;
    let mut below = root.clone();
    for report in reports {
        let (area, rest) = below.split_vertically(height(report));
        axes.trial(report, &area)?;
        below = rest;
    }
    root.present()
}

/// The axes that all trials share.
struct Axes {
    /// The unit of time: how many seconds it has, and its name.
    unit: (f64, &'static str),
    /// How long the longest trial is, in that unit.
    span: f64,
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
        let busiest = |series: &Series| series.bins.iter().map(|bin| f64::from(bin.calls())).fold(1.0, f64::max);
        let calls = series().map(busiest).fold(0.0, f64::max);
        Self { unit, span: seconds / unit.0, calls }
    }

    fn trial(&self, report: &TrialReport, area: &Area<'_>) -> Drawn {
        let area = area.titled(&printable(&report.label), ("sans-serif", 18))?;
        let parts = area.split_evenly((1 + report.limits.len(), 1));
        for (place, (caption, part)) in report.captions().zip(&parts).enumerate() {
            self.balance(&caption, &report.series, place, part)?;
        }
        parts.last().map_or(Ok(()), |part| self.calls(&report.series, part))
    }

    /// A balance: at each bin from the most to the least, which is a line wherever it changes slowly.
    fn balance(&self, caption: &str, series: &Series, place: usize, area: &Area<'_>) -> Drawn {
        let mut plot = self.plot(tokens(series, place), &printable(caption), area)?;
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
            .label_style(FONT)
            .x_labels(5)
            .y_labels(5)
            .x_label_formatter(&|time| format!("{} {unit}", number(*time)))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        Ok(plot)
    }
}

/// From the deepest debt to the largest balance of a limit. A plot needs an axis even where nothing can be had at once
/// and nothing is owed.
fn tokens(series: &Series, place: usize) -> Range<f64> {
    let levels = || series.bins.iter().map(|bin| &bin.levels[place]);
    let lowest = levels().map(|level| about(level.low)).fold(0.0, f64::min);
    let highest = levels().map(|level| about(level.high)).fold(0.0, f64::max);
    lowest..if highest > lowest { highest } else { lowest + 1.0 }
}

/// The seconds of a bin.
fn width(series: &Series) -> f64 {
    Duration::from_micros(series.width_us).as_secs_f64()
}

/// Pixels of a plot, and of the title of a trial.
const HEIGHT: u32 = 150;
const TITLE: u32 = 30;
