use std::cmp::Ordering;

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::frame::{Frame, KeyLine};

/// What the keys of the keyboard have set: which rows are shown, in which order, from which on.
#[derive(Clone, Debug, Default)]
pub(super) struct Controls {
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    /// Shown are limits and keys that contain it.
    pub(super) filter: String,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    /// How many rows are above the first that is shown.
    pub(super) above: usize,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sort {
    /// Most tokens taken since the look before first: the hottest keys.
    #[default]
    Taken,
    /// Longest until full first: the most exhausted keys.
    Full,
    /// Least balance first: the deepest debts.
    Balance,
    /// By limit and key.
    Name,
}

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Act {
    Draw,
    Quit,
}

impl Controls {
    pub(super) fn press(&mut self, event: KeyEvent) -> Act {
        if event.kind == KeyEventKind::Release {
            return Act::Draw;
        }
        if event.code == KeyCode::Char('c') && event.modifiers.contains(KeyModifiers::CONTROL) {
            return Act::Quit;
        }
        if self.typing { self.type_on(event.code) } else { self.command(event.code) }
    }

    fn type_on(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Char(character) => self.filter.push(character),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            _ => {}
        }
        self.above = 0;
        Act::Draw
    }

    fn command(&mut self, code: KeyCode) -> Act {
        match code {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Char('t') => self.sort_by(Sort::Taken),
            KeyCode::Char('f') => self.sort_by(Sort::Full),
            KeyCode::Char('b') => self.sort_by(Sort::Balance),
            KeyCode::Char('n') => self.sort_by(Sort::Name),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down => self.above += 1,
            KeyCode::Up => self.above = self.above.saturating_sub(1),
            KeyCode::PageDown => self.above += PAGE,
            KeyCode::PageUp => self.above = self.above.saturating_sub(PAGE),
            KeyCode::Home => self.above = 0,
            _ => {}
        }
        Act::Draw
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.reversed, self.above) = (sort, false, 0);
    }

    /// The rows to show, from the first that is not scrolled away; never none if there are any.
    pub(super) fn choose<'f>(&self, frame: &'f Frame) -> Vec<&'f KeyLine> {
        let is_shown = |line: &&KeyLine| line.limit.contains(&self.filter) || line.key.contains(&self.filter);
        let mut lines: Vec<_> = frame.keys.iter().filter(is_shown).collect();
        lines.sort_by(|one, other| {
            let order = self.sort.compare(one, other);
            let order = if self.reversed { order.reverse() } else { order };
            order.then_with(|| (&one.limit, &one.key, one.shard).cmp(&(&other.limit, &other.key, other.shard)))
        });
        let above = self.above.min(lines.len().saturating_sub(1));
        lines.split_off(above)
    }
}

impl Sort {
    fn compare(self, one: &KeyLine, other: &KeyLine) -> Ordering {
        let taken = |line: &KeyLine| line.taken_per_second.unwrap_or_default();
        match self {
            Self::Taken => taken(other).total_cmp(&taken(one)).then(other.written.cmp(&one.written)),
            Self::Full => other.full_in.cmp(&one.full_in),
            Self::Balance => one.balance.cmp(&other.balance),
            Self::Name => (&one.limit, &one.key, one.shard).cmp(&(&other.limit, &other.key, other.shard)),
        }
    }
}

const PAGE: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::frame::tests::two_looks;
    use super::*;

    fn press(controls: &mut Controls, code: KeyCode) -> Act {
        controls.press(KeyEvent::from(code))
    }

    fn shown(controls: &Controls) -> Vec<String> {
        let [before, now] = two_looks();
        let frame = Frame::new(Some(&before), &now, None);
        controls.choose(&frame).into_iter().map(|line| line.key.clone()).collect()
    }

    #[test]
    fn each_order_has_its_key_and_is_reversed_by_another() {
        let mut controls = Controls::default();
        assert_eq!(shown(&controls), ["ada", "bob", "eve"]);
        for (key, order) in [
            ('f', ["bob", "ada", "eve"]),
            ('b', ["bob", "ada", "eve"]),
            ('n', ["ada", "bob", "eve"]),
            ('t', ["ada", "bob", "eve"]),
        ] {
            press(&mut controls, KeyCode::Char(key));
            assert_eq!(shown(&controls), order, "{key}");
        }
        press(&mut controls, KeyCode::Char('n'));
        press(&mut controls, KeyCode::Char('r'));
        assert_eq!(shown(&controls), ["eve", "bob", "ada"]);
    }

    #[test]
    fn while_a_filter_is_typed_letters_are_letters() {
        let mut controls = Controls::default();
        for key in "/aq".chars() {
            assert_eq!(press(&mut controls, KeyCode::Char(key)), Act::Draw);
        }
        assert_eq!((controls.filter.as_str(), shown(&controls).len()), ("aq", 0));
        press(&mut controls, KeyCode::Backspace);
        press(&mut controls, KeyCode::Enter);
        assert_eq!(shown(&controls), ["ada", "bob", "eve"], "all are messages");
        assert_eq!(press(&mut controls, KeyCode::Char('q')), Act::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        controls.typing = true;
        assert_eq!(controls.press(interrupt), Act::Quit);
    }

    #[test]
    fn nobody_scrolls_beyond_the_last_row() {
        let mut controls = Controls::default();
        press(&mut controls, KeyCode::Down);
        assert_eq!(shown(&controls), ["bob", "eve"]);
        press(&mut controls, KeyCode::PageDown);
        assert_eq!(shown(&controls), ["eve"]);
        press(&mut controls, KeyCode::Home);
        press(&mut controls, KeyCode::Up);
        assert_eq!(shown(&controls).len(), 3);
    }
}
