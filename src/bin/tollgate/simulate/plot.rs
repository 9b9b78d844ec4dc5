//! Plots in a terminal, 80 columns wide.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::{self, Marker};
use ratatui::widgets::canvas::{Canvas, Line};
use ratatui::widgets::{Sparkline, Widget};

use super::figure::{Balance, Figure, Panel, number, time};

/// How many columns a plot has beside its labels: each of them five of a series' bins.
pub(super) const COLUMNS: u16 = 64;

/// A scene: the balance under each limit, granted and refused calls, and the time below them.
pub(super) fn plot(figure: &Figure, panel: &Panel) -> String {
    let balances = u16::try_from(panel.balances.len()).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, GUTTER + COLUMNS, balances.saturating_mul(HEIGHT + 1) + 3);
    let mut buffer = Buffer::empty(area);
    let mut top = 0;
    for balance in &panel.balances {
        buffer.set_stringn(0, top, &balance.label, area.width.into(), Style::new().dim());
        draw(figure, balance, Rect::new(0, top + 1, area.width, HEIGHT), &mut buffer);
        top += HEIGHT + 1;
    }
    for (answer, (label, color)) in [("granted", Color::Green), ("refused", Color::Red)].into_iter().enumerate() {
        left(&mut buffer, top, label, '│');
        let calls: Vec<_> = panel.columns.iter().map(|column| thousandths(column[answer])).collect();
        let area = Rect::new(GUTTER, top, COLUMNS, 1);
        let bars = Sparkline::default().data(&calls).max(thousandths(figure.busiest)).style(color);
        bars.bar_set(symbols::bar::NINE_LEVELS).render(area, &mut buffer);
        top += 1;
    }
    times(figure, &mut buffer, top);
    text(&buffer)
}

fn draw(figure: &Figure, balance: &Balance, area: Rect, buffer: &mut Buffer) {
    let [lowest, highest] = figure.tokens;
    let middle = f64::midpoint(lowest, highest);
    for row in 0..HEIGHT {
        let (label, axis) = match row {
            0 => (number(highest), '┤'),
            row if row == HEIGHT / 2 => (number(middle), '┤'),
            row if row == HEIGHT - 1 => (number(lowest), '┤'),
            _ => (String::new(), '│'),
        };
        left(buffer, area.y + row, &label, axis);
    }
    let canvas = Canvas::default()
        .marker(Marker::Braille)
        .x_bounds([0.0, figure.span.as_secs_f64()])
        .y_bounds([lowest, highest])
        .paint(|context| {
            let mut line = |x1, y1, x2, y2| context.draw(&Line::new(x1, y1, x2, y2, Color::Cyan));
            // From point to point, and at each of them from the most to the least.
            for [at, low, high] in &balance.points {
                line(*at, *high, *at, *low);
            }
            for pair in balance.points.windows(2) {
                let ([from, low, _], [to, _, high]) = (pair[0], pair[1]);
                line(from, low, to, high);
            }
        });
    canvas.render(Rect::new(GUTTER, area.y, COLUMNS, area.height), buffer);
}

fn times(figure: &Figure, buffer: &mut Buffer, row: u16) {
    let end = figure.span.as_secs_f64();
    for quarter in 0..=4_u16 {
        let label = time(end * f64::from(quarter) / 4.0);
        let width = u16::try_from(label.chars().count()).unwrap_or(COLUMNS);
        // In the middle of its place, but within the plot.
        let place = (COLUMNS * quarter / 4).saturating_sub(width / 2).min(COLUMNS.saturating_sub(width));
        buffer.set_string(GUTTER + place, row, label, Style::new().dim());
    }
}

/// A label in the gutter, and the axis beside it.
fn left(buffer: &mut Buffer, row: u16, label: &str, axis: char) {
    let width = usize::from(GUTTER) - 2;
    buffer.set_string(0, row, format!("{label:>width$.width$} {axis}"), Style::new().dim());
}

/// The buffer as text, with the codes of its colours.
fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content.chunks(buffer.area.width.into()) {
        let end = row.iter().rposition(|cell| cell.symbol() != " ").map_or(0, |last| last + 1);
        let mut color = "";
        for cell in &row[..end] {
            if color != code(cell) {
                color = code(cell);
                let _ = write!(text, "\u{1b}[0{color}m");
            }
            text.push_str(cell.symbol());
        }
        text.push_str(if color.is_empty() { "\n" } else { "\u{1b}[0m\n" });
    }
    text
}

fn code(cell: &Cell) -> &'static str {
    match cell.fg {
        Color::Cyan => ";36",
        Color::Green => ";32",
        Color::Red => ";31",
        _ if cell.modifier.contains(ratatui::style::Modifier::DIM) => ";2",
        _ => "",
    }
}

/// Sparklines are made of whole numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; a float too large becomes the largest"
)]
fn thousandths(number: f64) -> u64 {
    (number * 1e3).ceil() as u64
}

const GUTTER: u16 = 11;
const HEIGHT: u16 = 7;
