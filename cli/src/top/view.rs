use std::iter;
use std::ops::ControlFlow;

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
    let lengths = [11, 11, 9, 11, 6, 11, 11, 9].map(Constraint::Length);
    let widths = [Constraint::Fill(2), Constraint::Fill(3)].into_iter().chain(lengths);
    let lines = lines.iter().take(usize::from(height)).map(|line| key_line(line));
    Table::new(lines, widths).header(header(heads))
}

fn key_line(line: &KeyLine) -> Row<'static> {
    let taken = line.taken_per_second.map_or_else(unknown, |taken| {
        let at_least = if taken > 0.0 && line.capacity.is_none() { "≥ " } else { "" };
        format!("{at_least}{taken:.1}")
    });
    let key = if line.key.is_empty() { "(all callers)".to_owned() } else { printable(&line.key) };
    let key = if line.shard == 0 { key } else { format!("{key} #{}", line.shard) };
    let key = if line.overridden { format!("{key} (overridden)") } else { key };
    let cells = [
        line.remaining.map_or_else(unknown, |remaining| remaining.to_string()),
        line.used.to_string(),
        line.capacity.map_or_else(unknown, |capacity| capacity.to_string()),
        taken,
        if line.leases > 0 { line.leases.to_string() } else { String::new() },
        line.full_in.map_or_else(|| "never".to_owned(), span),
        line.clears_in.map(span).unwrap_or_default(),
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
