use std::fmt::Display;
use std::iter;
use std::ops::ControlFlow;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use tollgate::{Storage, Tokens};

use super::frame::{Frame, KeyLine, Sort, Totals};
use crate::output::{counted, printable, span};
use crate::storage;

/// The content of the screen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) frame: Frame,
    pub(super) sort: Sort,
    /// Why the frame is not a newer one, or not whole.
    pub(super) note: Option<String>,
}

impl View {
    pub(super) fn new(frame: Frame, sort: Sort) -> Self {
        Self { note: frame.away.clone(), frame, sort }
    }

    /// Obeys a key of the keyboard, and breaks if that is the one that quits.
    pub(super) fn press(&mut self, KeyEvent { code, modifiers, .. }: KeyEvent) -> ControlFlow<()> {
        self.sort = match code {
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return ControlFlow::Break(()),
            KeyCode::Char('t') => Sort::Taken,
            KeyCode::Char('f') => Sort::Full,
            KeyCode::Char('r') => Sort::Remaining,
            KeyCode::Char('n') => Sort::Name,
            _ => self.sort,
        };
        ControlFlow::Continue(())
    }

    pub(super) fn draw(&self, canvas: &mut ratatui::Frame<'_>) {
        let heights = [Constraint::Length(HEAD), Constraint::Min(2), Constraint::Length(FOOT)];
        let [head, keys, foot] = Layout::vertical(heights).areas(canvas.area());
        canvas.render_widget(self.head(), head);
        canvas.render_widget(key_lines(&self.frame.sorted(self.sort), keys.height), keys);
        let truth = "Refusals write nothing, so they are not seen here; grants of a gate share writes.";
        let help = "sort by t taken, f full in, r remaining, n name; q quits";
        canvas.render_widget(Text::from(vec![Line::default(), Line::from(truth).dim(), Line::from(help).dim()]), foot);
    }

    /// The same as plain text, as high as it needs to be.
    pub(super) fn text(&self) -> String {
        let keys = u16::try_from(self.frame.keys.len()).unwrap_or(u16::MAX / 2);
        let height = HEAD + 1 + keys + FOOT;
        let Ok(mut terminal) = Terminal::new(TestBackend::new(WIDTH, height));
        let Ok(_) = terminal.draw(|canvas| self.draw(canvas));
        let lines = terminal.backend().buffer().content().chunks(usize::from(WIDTH));
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
        // Without the last line, which is about the keyboard.
        lines.take(usize::from(height - 1)).map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
    }

    fn head(&self) -> Paragraph<'static> {
        let Frame { at, seconds, tables, .. } = &self.frame;
        let order = match self.sort {
            Sort::Taken => "tokens taken",
            Sort::Full => "time until full",
            Sort::Remaining => "remaining",
            Sort::Name => "name",
        };
        let since = seconds.map(|seconds| format!("  since {seconds:.1} s ago")).unwrap_or_default();
        let about = format!("  {}{since}  by {order}", at.format("%Y-%m-%d %H:%M:%S UTC"));
        let mut line = vec!["tollgate top".bold(), about.into()];
        line.extend(self.note.as_ref().map(|note| format!("  {note}").red()));
        let totals = tables.iter().map(|(storage, totals)| total(*storage, totals));
        Paragraph::new(iter::once(Line::from(line)).chain(totals).collect::<Vec<_>>())
    }
}

fn total(storage: Storage, totals: &Totals) -> Line<'static> {
    let Totals { percent, not_full } = totals;
    let (table, rows) = (storage::table(storage), counted(not_full, "row"));
    let part = if *percent < 100.0 { format!(", on {percent:.0} % of its pages") } else { String::new() };
    Line::from(format!("{table}: {rows} not full{part}"))
}

fn key_lines(lines: &[&KeyLine], height: u16) -> Table<'static> {
    let heads = ["LIMIT", "KEY", "REMAINING", "USED", "OF", "TAKEN/s", "LEASES", "FULL IN", "CLEARS IN", "STORAGE"];
    let lengths = [NUMBER, NUMBER, CAPACITY, NUMBER, 6, NUMBER, NUMBER, 9].map(Constraint::Length);
    let widths = [Constraint::Fill(2), Constraint::Fill(3)].into_iter().chain(lengths);
    let lines = lines.iter().take(usize::from(height)).map(|line| key_line(line));
    Table::new(lines, widths).header(header(heads))
}

fn key_line(line: &KeyLine) -> Row<'static> {
    let taken = line.taken_per_second.map_or_else(unknown, |taken| {
        let at_least = if taken > 0.0 && line.capacity.is_none() { "≥ " } else { "" };
        format!("{at_least}{}", number(format_args!("{taken:.1}"), NUMBER - 2))
    });
    let key = if line.key.is_empty() { "(all callers)".to_owned() } else { printable(&line.key) };
    let key = if line.shard == 0 { key } else { format!("{key} #{}", line.shard) };
    let key = match line.rate_share {
        Some(share) => format!("{key} (at {:.0} %)", share * 100.0),
        None if line.overridden => format!("{key} (overridden)"),
        None => key,
    };
    let cells = [
        line.remaining.map_or_else(unknown, |remaining| number(remaining, NUMBER)),
        number(line.used, NUMBER),
        line.capacity.map_or_else(unknown, |capacity| number(capacity, CAPACITY)),
        taken,
        if line.leases > 0 { line.leases.to_string() } else { String::new() },
        line.full_in.map_or_else(|| "never".to_owned(), short),
        line.clears_in.map(short).unwrap_or_default(),
    ];
    let names = [printable(&line.limit), key].map(Cell::from);
    let row = Row::new(names.into_iter().chain(cells.map(right)).chain([storage::name(line.storage).into()]));
    if line.remaining.is_some_and(Tokens::is_negative) {
        row.style(Style::new().fg(Color::Red))
    } else if line.remaining.is_some_and(|remaining| remaining < Tokens::ONE) {
        row.style(Style::new().fg(Color::Yellow))
    } else {
        row
    }
}

fn header<const N: usize>(heads: [&'static str; N]) -> Row<'static> {
    let is_name = |head: &str| matches!(head, "LIMIT" | "KEY" | "STORAGE");
    let cells = heads.map(|head| if is_name(head) { Cell::from(head) } else { right(head.to_owned()) });
    Row::new(cells).style(Style::new().add_modifier(Modifier::BOLD))
}

/// A number in at most so many characters: with fewer decimals, or rounded. The table would cut its first digits off.
fn number(number: impl Display, width: u16) -> String {
    let (text, width) = (number.to_string(), usize::from(width));
    match text.find('.').unwrap_or(text.len()) {
        _ if text.len() <= width => text,
        whole if whole <= width => text[..width].trim_end_matches('.').to_owned(),
        _ => format!("{:.3e}", text.parse::<f64>().unwrap_or_default()),
    }
}

/// A span that fits: of two long units the first alone.
fn short(long: Duration) -> String {
    let text = span(long);
    let is_long = text.len() > usize::from(NUMBER);
    text.split_once(' ').filter(|_| is_long).map_or_else(|| text.clone(), |(first, _)| first.to_owned())
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn unknown() -> String {
    "-".to_owned()
}

/// The headline, a line for each table, and an empty one.
const HEAD: u16 = 4;
/// An empty line, and two that explain.
const FOOT: u16 = 3;
/// Of plain text: wide enough for all columns.
const WIDTH: u16 = 120;
/// Of the columns of numbers and spans, and of that of capacities.
const NUMBER: u16 = 11;
const CAPACITY: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_loses_its_last_digits_and_never_its_first() {
        let tokens = |micros| number(Tokens::from_micros(micros), NUMBER);
        assert_eq!(tokens(56_421_999_604_123), "56421999.60");
        assert_eq!(tokens(-1_234_567_890_100_000), "-1234567890");
        assert_eq!(tokens(60_000_000), "60");
        assert_eq!(tokens(i64::MIN), "-9.223e12");
        assert_eq!(number(format_args!("{:.1}", 15_000_000.0), 9), "15000000");
        assert_eq!(short(Duration::from_hours(24 * 365 * 400)), "399years");
        assert_eq!(short(Duration::from_hours(30)), "1day 6h");
    }
}
