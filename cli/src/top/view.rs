use std::array::from_fn;
use std::fmt::Display;
use std::iter;
use std::time::Duration;

use tollgate::Tokens;

use super::frame::{Frame, KeyLine, Sort};
use crate::output::{BAD, CAUTION, FAINT, HEADING, counted, printable, span, styled};
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

    /// Obeys a key of the keyboard. Returns whether it is one that quits.
    pub(super) fn press(&mut self, key: u8) -> bool {
        self.sort = match key {
            b't' => Sort::Taken,
            b'f' => Sort::Full,
            b'r' => Sort::Remaining,
            b'n' => Sort::Name,
            _ => self.sort,
        };
        matches!(key, b'q' | INTERRUPT)
    }

    /// As text, as wide and as high as it needs to be.
    pub(super) fn text(&self) -> String {
        let lines = self.head().into_iter().chain(table(&self.frame.sorted(self.sort), usize::MAX));
        lines.chain([String::new(), TRUTH.to_owned()]).map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// The lines of a screen of this size. Its terminal cuts off what is wider.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let (mut lines, foot) = (self.head(), ["", TRUTH, HELP].map(|line| styled(FAINT, line)));
        let mut sorted = self.frame.sorted(self.sort);
        sorted.truncate(height.saturating_sub(lines.len() + 1 + foot.len()));
        lines.extend(table(&sorted, width).into_iter().chain(foot));
        lines
    }

    fn head(&self) -> Vec<String> {
        let Frame { at, seconds, tables, .. } = &self.frame;
        let order = match self.sort {
            Sort::Taken => "tokens taken",
            Sort::Full => "time until full",
            Sort::Remaining => "remaining",
            Sort::Name => "name",
        };
        let since = seconds.map(|seconds| format!("  since {seconds:.1} s ago")).unwrap_or_default();
        let note = self.note.as_ref().map(|note| styled(BAD, format!("  {note}"))).unwrap_or_default();
        let about = format!("tollgate top  {}{since}  by {order}{note}", at.format("%Y-%m-%d %H:%M:%S UTC"));
        let totals = tables.iter().map(|(storage, totals)| {
            let (percent, rows) = (totals.percent, counted(totals.not_full, "row"));
            let part = if percent < 100.0 { format!(", on {percent:.0} % of its pages") } else { String::new() };
            format!("{}: {rows} not full{part}", storage::table(*storage))
        });
        iter::once(about).chain(totals).chain([String::new()]).collect()
    }
}

/// The rows under their heads. If they are wider than the screen, the time until a row is full goes first, and then the
/// middle of the names.
fn table(lines: &[&KeyLine], width: usize) -> Vec<String> {
    let heads = ["LIMIT", "KEY", "", "REMAINING", "", "TAKEN/s", "FULL IN"].map(str::to_owned);
    let rows: Vec<_> = iter::once(heads).chain(lines.iter().map(|line| cells(line))).collect();
    let mut widths: [usize; 7] =
        from_fn(|cell| rows.iter().map(|row| row[cell].chars().count()).max().unwrap_or_default());
    let sum =
        |widths: &[usize]| widths.iter().filter(|width| **width > 0).map(|width| width + GAP.len()).sum::<usize>();
    if sum(&widths) > width.saturating_add(GAP.len()) {
        widths[FULL_IN] = 0;
        let names = width.saturating_sub(sum(&widths[2..]) + GAP.len()).max(LEAST);
        let key = widths[1];
        widths[0] = widths[0].min(names.saturating_sub(key).max(names / 2));
        widths[1] = key.min(names - widths[0]);
    }
    let text = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).enumerate().filter(|(_, (_, width))| *width > 0);
        let aligned = cells.map(|(place, (cell, width))| match place {
            REMAINING | TAKEN | FULL_IN => format!("{cell:>width$}"),
            _ => format!("{:<width$}", cut(cell, width)),
        });
        aligned.collect::<Vec<_>>().join(GAP)
    };
    let color = |(row, line): (&[String; 7], &&KeyLine)| match line.remaining {
        Some(remaining) if remaining.is_negative() => styled(BAD, text(row)),
        Some(remaining) if remaining < Tokens::ONE => styled(CAUTION, text(row)),
        _ => text(row),
    };
    iter::once(styled(HEADING, text(&rows[0]))).chain(rows[1..].iter().zip(lines).map(color)).collect()
}

/// Limit, key, override, balance, bar, rate, and the time until it is full.
fn cells(line: &KeyLine) -> [String; 7] {
    let key = if line.key.is_empty() { "(all callers)".to_owned() } else { printable(&line.key) };
    let key = if line.shard == 0 { key } else { format!("{key} #{}", line.shard) };
    let state = match line.rate_share {
        Some(share) => format!("at {:.0} %", share * 100.0),
        None if line.overridden => "override".to_owned(),
        None => String::new(),
    };
    let amount = match (line.remaining, line.capacity) {
        (Some(remaining), Some(capacity)) => format!("{} of {}", number(remaining), number(capacity)),
        (Some(remaining), None) => number(remaining),
        (None, _) => format!("{} used", number(line.used)),
    };
    let taken = line.taken_per_second.map_or_else(
        || "-".to_owned(),
        |taken| {
            let at_least = if taken > 0.0 && line.capacity.is_none() { "≥ " } else { "" };
            format!("{at_least}{}", number(format_args!("{taken:.1}")))
        },
    );
    let full = line.full_in.map_or_else(|| "never".to_owned(), short);
    [printable(&line.limit), key, state, amount, bar(line).unwrap_or_default(), taken, full]
}

/// The balance as a share of the capacity.
fn bar(line: &KeyLine) -> Option<String> {
    let (remaining, capacity) = (line.remaining?.micros().max(0), line.capacity?.micros());
    let filled = remaining / (capacity / BAR).max(1);
    Some(format!("▕{}▏", (0..BAR).map(|place| if place < filled { '█' } else { '·' }).collect::<String>()))
}

/// A text in at most so many characters: names that begin alike often end otherwise.
fn cut(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// A number in a few characters, with two decimals at most.
fn number(number: impl Display) -> String {
    let text = number.to_string();
    match text.find('.').unwrap_or(text.len()) {
        whole if whole <= NUMBER => text[..text.len().min(whole + 3).min(NUMBER)].trim_end_matches('.').to_owned(),
        _ => format!("{:.2e}", text.parse::<f64>().unwrap_or_default()),
    }
}

/// A span in a few characters: of two long units the first alone.
fn short(long: Duration) -> String {
    let text = span(long);
    text.split_once(' ').filter(|_| text.len() > SPAN).map_or_else(|| text.clone(), |(first, _)| first.to_owned())
}

const TRUTH: &str = "Refusals write nothing, so they are not seen here; grants of a gate share writes.";
const HELP: &str = "sort by t taken, f full in, r remaining, n name; q quits";

/// The character that Ctrl-C types.
const INTERRUPT: u8 = 3;

/// The columns of numbers.
const REMAINING: usize = 3;
const TAKEN: usize = 5;
const FULL_IN: usize = 6;
const GAP: &str = "  ";

/// The cells of a bar.
const BAR: i64 = 8;
/// The characters of numbers and spans, and the least for both names together.
const NUMBER: usize = 9;
const SPAN: usize = 7;
const LEAST: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_loses_its_last_digits_and_never_its_first() {
        let tokens = |micros| number(Tokens::from_micros(micros));
        assert_eq!(tokens(56_421_999_604_123), "56421999");
        assert_eq!(tokens(-1_999_988), "-1.99");
        assert_eq!(tokens(-1_234_567_890_100_000), "-1.23e9");
        assert_eq!(tokens(60_000_000), "60");
        assert_eq!(tokens(i64::MIN), "-9.22e12");
        assert_eq!(number(format_args!("{:.1}", 15_000_000.0)), "15000000");
        assert_eq!(short(Duration::from_hours(24 * 365 * 400)), "399years");
        assert_eq!(short(Duration::from_hours(30)), "1day 6h");
    }

    #[test]
    fn a_name_keeps_its_beginning_and_its_end() {
        assert_eq!(cut("messages_per_minute", 19), "messages_per_minute");
        assert_eq!(cut("messages_per_minute", 12), "messag…inute");
        assert_eq!(cut("日本語の名前", 3), "日…前");
        assert_eq!(cut("abc", 1), "…");
    }
}
