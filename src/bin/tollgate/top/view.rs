use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use tollgate::{Storage, Tokens};

use super::controls::{Controls, Sort};
use super::frame::{Frame, KeyLine, TableLine};
use crate::output::printable;

/// Draws a frame; without one that there is none yet. `note` is what is to be said beside it, such as an error.
pub(super) fn draw(canvas: &mut ratatui::Frame<'_>, frame: Option<&Frame>, controls: &Controls, note: Option<&str>) {
    let tables = frame.map_or(0, |frame| frame.tables.len());
    let heights =
        [Constraint::Length(2), Constraint::Length(rows(tables) + 2), Constraint::Min(2), Constraint::Length(3)];
    let [head, upper, lower, foot] = Layout::vertical(heights).areas(canvas.area());
    canvas.render_widget(headline(frame, controls, note), head);
    if let Some(frame) = frame {
        canvas.render_widget(table_lines(frame), upper);
        key_lines(canvas, lower, frame, controls);
    }
    canvas.render_widget(footnote(controls), foot);
}

/// The same as plain text, as high as it needs to be.
pub(super) fn text(frame: &Frame, controls: &Controls, most: usize) -> String {
    let keys = controls.choose(frame).len().min(most);
    // The headline, the tables, the keys and the footnote, each with its own line or two.
    let height = 2 + rows(frame.tables.len()) + 2 + rows(keys) + 1 + 3;
    let Ok(mut terminal) = Terminal::new(TestBackend::new(WIDTH, height));
    let Ok(_) = terminal.draw(|canvas| draw(canvas, Some(frame), controls, None));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    // Without the last line, which is about the keyboard.
    for line in buffer.content().chunks(usize::from(WIDTH)).take(usize::from(height - 1)) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn headline(frame: Option<&Frame>, controls: &Controls, note: Option<&str>) -> Paragraph<'static> {
    let mut line = vec!["tollgate top".bold()];
    match frame {
        Some(Frame { at, seconds, .. }) => {
            line.push(format!("  {}", at.format("%Y-%m-%d %H:%M:%S UTC")).into());
            line.push(seconds.map(|seconds| format!("  since {seconds:.1} s ago")).unwrap_or_default().into());
        }
        None => line.push("  looking".into()),
    }
    line.push(format!("  by {}", sort_name(controls)).into());
    if controls.typing || !controls.filter.is_empty() {
        line.push(format!("  /{}", controls.filter).cyan());
    }
    if let Some(note) = note {
        line.push(format!("  {note}").red());
    }
    Paragraph::new(Line::from(line))
}

fn sort_name(controls: &Controls) -> String {
    let name = match controls.sort {
        Sort::Taken => "tokens taken",
        Sort::Full => "time until full",
        Sort::Balance => "balance",
        Sort::Name => "name",
    };
    if controls.reversed { format!("{name}, reversed") } else { name.to_owned() }
}

fn table_lines(frame: &Frame) -> Table<'static> {
    let heads =
        ["TABLE", "SIZE", "ROWS", "DEAD", "HOT", "WRITES/s", "DELETES/s", "NOT FULL", "BELOW 1", "IN DEBT", "OWED"];
    let widths = [12, 9, 10, 9, 5, 9, 9, 9, 9, 9, 12].map(Constraint::Length);
    Table::new(frame.tables.iter().map(table_line), widths).header(header(heads))
}

fn table_line(line: &TableLine) -> Row<'static> {
    let counted = line.counted;
    let scale = 100.0 / f64::from(line.percent);
    #[expect(clippy::cast_precision_loss, reason = "figures to be looked at")]
    let about = |count: i64| {
        if line.percent < 100.0 { format!("~{:.0}", count as f64 * scale) } else { count.to_string() }
    };
    let rate = |rate: Option<f64>| rate.map_or_else(unknown, |rate| format!("{rate:.0}"));
    let cells = [
        bytes(line.bytes),
        line.live.to_string(),
        line.dead.to_string(),
        line.hot.map_or_else(unknown, |share| format!("{:.0}%", share * 100.0)),
        rate(line.written_per_second),
        rate(line.deleted_per_second),
        about(counted.wanting),
        about(counted.low),
        about(counted.owing),
        format!("{:.0}", counted.owed * scale / 1e6),
    ];
    Row::new(std::iter::once(Cell::from(line.name.clone())).chain(cells.map(right)))
}

fn key_lines(canvas: &mut ratatui::Frame<'_>, area: Rect, frame: &Frame, controls: &Controls) {
    let heads = ["LIMIT", "KEY", "BALANCE", "OF", "TAKEN/s", "FULL IN", "CLEARS IN", "STORAGE"];
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(3),
        Constraint::Length(14),
        Constraint::Length(10),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(9),
    ];
    let chosen = controls.choose(frame);
    let lines = chosen.into_iter().take(usize::from(area.height)).map(key_line);
    canvas.render_widget(Table::new(lines, widths).header(header(heads)), area);
}

fn key_line(line: &KeyLine) -> Row<'static> {
    let taken = match (line.taken_per_second, line.written) {
        (Some(taken), _) if taken > 0.0 && line.capacity.is_none() => format!("≥ {taken:.1}"),
        (Some(taken), _) => format!("{taken:.1}"),
        (None, _) => unknown(),
    };
    let storage = if line.storage == Storage::Ephemeral { "ephemeral" } else { "durable" };
    let cells = [
        line.balance.to_string(),
        line.capacity.map_or_else(unknown, |capacity| capacity.to_string()),
        taken,
        span(line.full_in),
        line.clears_in.map(span).unwrap_or_default(),
    ];
    let names = [printable(&line.limit), printable(&whose(line))].map(Cell::from);
    let row = Row::new(names.into_iter().chain(cells.map(right)).chain([Cell::from(storage)]));
    if line.balance < Tokens::ZERO {
        row.style(Style::new().fg(Color::Red))
    } else if line.balance < Tokens::ONE {
        row.style(Style::new().fg(Color::Yellow))
    } else {
        row
    }
}

fn whose(line: &KeyLine) -> String {
    let key = if line.key.is_empty() { "(all callers)" } else { &line.key };
    if line.shard == 0 { key.to_owned() } else { format!("{key} #{}", line.shard) }
}

fn footnote(controls: &Controls) -> Paragraph<'static> {
    let keys = if controls.typing {
        "type what limit or key contain; Enter keeps it, Esc drops it"
    } else {
        "sort by t taken, f full in, b balance, n name; r reverses, / filters, arrows scroll, q quits"
    };
    let truth = "Refusals write nothing, so they are not seen here; grants of a gate share writes.";
    Paragraph::new(Text::from(vec![Line::default(), Line::from(truth).dim(), Line::from(keys).dim()]))
}

fn header<const N: usize>(heads: [&'static str; N]) -> Row<'static> {
    let is_name = |head: &str| matches!(head, "TABLE" | "LIMIT" | "KEY" | "STORAGE");
    let cells = heads.map(|head| if is_name(head) { Cell::from(head) } else { right(head.to_owned()) });
    Row::new(cells).style(Style::new().add_modifier(Modifier::BOLD))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn unknown() -> String {
    "-".to_owned()
}

/// The two largest units of it.
fn span(span: Duration) -> String {
    if span < Duration::from_mins(1) {
        return format!("{:.1}s", span.as_secs_f64());
    }
    let whole = humantime::format_duration(Duration::from_secs(span.as_secs())).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[expect(clippy::cast_precision_loss, reason = "figures to be looked at")]
fn bytes(bytes: i64) -> String {
    let (mut amount, mut units) = (bytes as f64, ["B", "kB", "MB", "GB", "TB"].iter());
    let mut unit = units.next();
    while amount >= 1024.0 && units.len() > 0 {
        (amount, unit) = (amount / 1024.0, units.next());
    }
    let digits = usize::from(amount < 10.0 && unit != Some(&"B"));
    format!("{amount:.digits$} {}", unit.unwrap_or(&""))
}

fn rows(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX / 2)
}

/// Of plain text: wide enough for all columns.
const WIDTH: u16 = 120;

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{limits, two_looks};
    use super::*;

    #[test]
    fn a_frame_as_plain_text() {
        let [before, now] = two_looks();
        let frame = Frame::new(Some(&before), &now, Some(&limits()));
        assert_eq!(text(&frame, &Controls::default(), 100), include_str!("frame.txt"));
        let frame = Frame::new(None, &now, None);
        let controls = Controls { sort: Sort::Balance, filter: "b".to_owned(), ..Controls::default() };
        assert_eq!(text(&frame, &controls, 1), include_str!("first_frame.txt"));
    }

    #[test]
    fn a_terminal_of_any_size_will_do() {
        let [before, now] = two_looks();
        let frame = Frame::new(Some(&before), &now, None);
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            for frame in [None, Some(&frame)] {
                terminal.draw(|canvas| draw(canvas, frame, &Controls::default(), Some("gone"))).unwrap();
            }
        }
    }

    #[test]
    fn spans_and_sizes_are_short() {
        let spans = [(0, "0.0s"), (59_949, "59.9s"), (60_000, "1m"), (3_661_000, "1h 1m"), (90_061_000, "1day 1h")];
        for (millis, text) in spans {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
        for (size, text) in [(0, "0 B"), (1023, "1023 B"), (8192, "8.0 kB"), (81_920, "80 kB"), (5 << 40, "5.0 TB")] {
            assert_eq!(bytes(size), text);
        }
    }
}
