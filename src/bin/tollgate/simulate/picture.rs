//! Plots as a picture: scenes side by side, the balance under each limit above the calls.

use std::ops::Range;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use tollgate::simulate::Finding;

use super::figure::{Balance, Figure, Panel, number, time};

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The picture as an SVG document.
pub(super) fn draw(findings: &[Finding]) -> Result<String, DrawingAreaErrorKind<std::io::Error>> {
    let figure = Figure::of(findings, COLUMNS);
    let across = figure.panels.len().clamp(1, MOST_ACROSS);
    let down = figure.panels.len().div_ceil(across);
    let rows = 1 + figure.panels.iter().map(|panel| panel.balances.len()).max().unwrap_or_default();
    let pixels = |count: usize, each: u32| u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(each);
    let size = (pixels(across, WIDTH), pixels(down, TITLE + pixels(rows, HEIGHT)));
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (panel, area) in figure.panels.iter().zip(root.split_evenly((down, across))) {
            scene(&figure, panel, &area, rows)?;
        }
        root.present()?;
    }
    Ok(picture)
}

fn scene(figure: &Figure, panel: &Panel, area: &Area<'_>, rows: usize) -> Drawn {
    let area = area.titled(&panel.label, ("sans-serif", 18))?;
    let parts = area.split_evenly((rows, 1));
    for (balance, part) in panel.balances.iter().zip(&parts) {
        tokens(figure, balance, part)?;
    }
    // Below the balances, also where another scene has more of them.
    parts.last().map_or(Ok(()), |part| calls(figure, panel, part))
}

/// A balance: a band from the least to the most that it was, which is a line wherever it changes slowly.
fn tokens(figure: &Figure, balance: &Balance, area: &Area<'_>) -> Drawn {
    let [lowest, highest] = figure.tokens;
    let mut plot = axes(figure, lowest..highest, &format!("tokens: {}", balance.label), area)?;
    let tops = balance.points.iter().map(|[at, _, high]| (*at, *high));
    let bottoms = balance.points.iter().rev().map(|[at, low, _]| (*at, *low));
    let band: Vec<_> = tops.chain(bottoms).collect();
    plot.draw_series([Polygon::new(band.clone(), TOKENS.mix(0.25))])?;
    plot.draw_series([PathElement::new(band, TOKENS)])?;
    Ok(())
}

/// Calls a second, what was refused on top of what was granted.
fn calls(figure: &Figure, panel: &Panel, area: &Area<'_>) -> Drawn {
    let most = if figure.busiest > 0.0 { figure.busiest } else { 1.0 };
    let mut plot = axes(figure, 0.0..most, "calls a second: granted, and refused on top", area)?;
    let width = figure.span.as_secs_f64() / float(COLUMNS);
    for (place, [granted, refused]) in panel.columns.iter().enumerate() {
        let [from, to] = [place, place + 1].map(|edge| float(edge) * width);
        let parts = [(0.0, *granted, GRANTED), (*granted, granted + refused, REFUSED)];
        let bar = |(low, high, color): (f64, f64, RGBColor)| Rectangle::new([(from, low), (to, high)], color.filled());
        plot.draw_series(parts.into_iter().filter(|(low, high, _)| high > low).map(bar))?;
    }
    Ok(())
}

fn axes<'a, 'b>(
    figure: &Figure,
    y: Range<f64>,
    caption: &str,
    area: &'a Area<'b>,
) -> Result<Plot<'a, 'b>, DrawingAreaErrorKind<std::io::Error>> {
    let mut plot = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 13))
        .margin_left(8)
        .margin_right(24)
        .x_label_area_size(24)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..figure.span.as_secs_f64(), y)?;
    plot.configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(5)
        .y_labels(5)
        .x_label_formatter(&|seconds| time(*seconds))
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    Ok(plot)
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
fn float(count: usize) -> f64 {
    count as f64
}

/// Bars in the plot of the calls: each of them four of a series' bins.
const COLUMNS: usize = 80;
/// Scenes in a row.
const MOST_ACROSS: usize = 3;
/// Pixels of a scene.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 180;
const TITLE: u32 = 30;

const TOKENS: RGBColor = RGBColor(0, 114, 178);
const GRANTED: RGBColor = RGBColor(0, 158, 115);
const REFUSED: RGBColor = RGBColor(213, 94, 0);
