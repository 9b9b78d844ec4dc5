//! The file, the colours, the frame and the numbers of each picture.

use std::path::Path;
use std::{fs, io};

use plotters::coord::Shift;
use plotters::prelude::*;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<io::Error>>;

/// Draws a document, whose first rectangle is its paper, into a file.
pub(crate) fn write(file: &Path, draw: impl FnOnce(&mut String) -> Drawn) -> io::Result<()> {
    let mut document = String::new();
    draw(&mut document).expect("a text takes what is drawn");
    let inside = document.find("<rect").expect("it begins with its paper");
    document.insert_str(inside, DARK);
    fs::write(file, document)
}

/// A plot with a caption, and room for the labels of its axes.
pub(crate) fn chart<'a, 'b>(area: &'a Area<'b>, caption: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(caption, FONT).margin_left(8).margin_right(24);
    chart.x_label_area_size(28).y_label_area_size(48);
    chart
}

/// Legible where a telephone shows a picture of this width.
pub(crate) const FONT: (&str, u32) = ("sans-serif", 15);
pub(crate) const WIDTH: u32 = 420;

/// A number on an axis: to two decimals, without zeros at the end.
pub(crate) fn number(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(crate) const TOKENS: RGBColor = RGBColor(0, 114, 178);
pub(crate) const GRANTED: RGBColor = RGBColor(0, 158, 115);
pub(crate) const REFUSED: RGBColor = RGBColor(213, 94, 0);

/// Turns a picture for white paper into one for black paper, where a reader prefers that. A style takes precedence over
/// an attribute.
const DARK: &str = r##"<style>
@media (prefers-color-scheme: dark) {
rect[fill="#FFFFFF"] { fill: #15171A; } text { fill: #E6E7E9; } [stroke="#000000"] { stroke: #9AA1AB; }
line[stroke="#000000"][opacity="0.2"] { stroke: #E6E7E9; }
[stroke="#0072B2"] { stroke: #58B4E9; } [stroke="#009E73"] { stroke: #2FC29A; } [stroke="#D55E00"] { stroke: #F08A4B; }
[fill="#0072B2"] { fill: #58B4E9; } [fill="#009E73"] { fill: #2FC29A; } [fill="#D55E00"] { fill: #F08A4B; }
}
</style>
"##;
