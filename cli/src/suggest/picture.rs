//! The choices as an SVG document: what a key may take, and below it what is refused, by the rate.

use std::io;
use std::path::Path;

use plotters::prelude::*;
use tollgate::{LimitKind, Span};
use tollgate_simulation::{Choice, Question, Suggestion};

use crate::output::about;
use crate::svg::{self, Area, Drawn, FONT, GRANTED, REFUSED, TOKENS, WIDTH, number};

/// Draws the choices into a file.
pub(super) fn draw(question: &Question, suggestion: &Suggestion, file: &Path) -> io::Result<()> {
    svg::write(file, |document| draw_into(document, question, suggestion))
}

fn draw_into(document: &mut String, question: &Question, suggestion: &Suggestion) -> Drawn {
    let is_bucket = question.kind == LimitKind::TokenBucket;
    let plots: u32 = if is_bucket { 2 } else { 1 };
    let root = SVGBackend::with_string(document, (WIDTH, plots * HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let parts = root.split_evenly((2.min(plots as usize), 1));
    let page = Page { question, suggestion };
    if is_bucket {
        page.tokens(&parts[0])?;
    }
    page.refused(&parts[parts.len() - 1])?;
    root.present()
}

struct Page<'s> {
    question: &'s Question,
    suggestion: &'s Suggestion,
}

/// A line: its name, its color, and its height at each choice.
type Line<'l> = (&'l str, RGBColor, &'l dyn Fn(&Choice) -> f64);

impl Page<'_> {
    fn tokens(&self, area: &Area<'_>) -> Drawn {
        let per = Span(self.question.per);
        let capacity = |choice: &Choice| about(choice.limit.most());
        let sum = |choice: &Choice| about(choice.limit.rate) + capacity(choice);
        let caption = format!("tokens, by the rate each {per}");
        self.plot(&caption, &[("smallest capacity", TOKENS, &capacity), ("most in any period", GRANTED, &sum)], area)
    }

    #[expect(clippy::cast_precision_loss, reason = "it is drawn")]
    fn refused(&self, area: &Area<'_>) -> Drawn {
        let Suggestion { calls, keys, .. } = *self.suggestion;
        let per = Span(self.question.per);
        let of_calls = |choice: &Choice| 100.0 * choice.refused_calls as f64 / calls as f64;
        let of_keys = |choice: &Choice| 100.0 * choice.refused_keys as f64 / keys as f64;
        let lines: [Line<'_>; 2] = [("calls", REFUSED, &of_calls), ("keys", TOKENS, &of_keys)];
        let lines = if self.question.is_global { &lines[..1] } else { &lines };
        self.plot(&format!("per cent refused, by the rate each {per}"), lines, area)
    }

    /// Lines over the rates, one beside the other; the answer is marked on each.
    fn plot(&self, caption: &str, lines: &[Line<'_>], area: &Area<'_>) -> Drawn {
        let choices = &self.suggestion.choices;
        let chosen = self.suggestion.chosen();
        let highest = choices.iter().flat_map(|choice| lines.iter().map(|(_, _, height)| height(choice)));
        let highest = highest.fold(0.0, f64::max);
        let mut plot = svg::chart(area, caption)
            .build_cartesian_2d(0..choices.len().max(2) - 1, 0.0..if highest > 0.0 { ROOM * highest } else { 1.0 })?;
        plot.configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(8)
            .y_labels(5)
            .label_style(FONT)
            .x_label_formatter(&|place| choices.get(*place).map_or_else(String::new, |it| number(about(it.limit.rate))))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        for (name, color, height) in lines {
            let points = || choices.iter().enumerate().map(|(place, choice)| (place, height(choice)));
            let line = PathElement::new(points().collect::<Vec<_>>(), *color);
            let key = |(x, y)| PathElement::new([(x, y), (x + 16, y)], *color);
            plot.draw_series([line])?.label(*name).legend(key);
            let marked = points().zip(choices).filter(|(_, choice)| std::ptr::eq(*choice, chosen));
            plot.draw_series(marked.map(|(point, _)| Circle::new(point, 5, color.filled())))?;
        }
        plot.configure_series_labels().position(SeriesLabelPosition::UpperRight).label_font(FONT).draw()?;
        Ok(())
    }
}

/// The height of a plot in pixels, and how much of it lies above the lines, for their names.
const HEIGHT: u32 = 240;
const ROOM: f64 = 1.5;
