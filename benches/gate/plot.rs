//! The picture beside the tables: how many calls are decided for each that Redis decides, by callers.

/// One of two pictures side by side.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// A contender.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Its class in the style.
    pub(crate) tone: &'static str,
    /// Numbers of callers, and decisions for each one of Redis.
    pub(crate) points: Vec<(u32, f64)>,
}

/// A picture that explains itself, on light and on dark paper; `None` where a gate was not measured beside Redis.
pub(crate) fn svg(panels: &[Panel; 2]) -> Option<String> {
    let [many, one] = [panels[0].best()?, panels[1].best()?];
    let title =
        format!("For each call that Redis decides a gate decides up to {many:.2} over 10 000 keys, {one:.2} on one");
    let ratios = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points).map(|point| point.1);
    let most = ratios.fold(1.0, f64::max);
    let names: Vec<_> =
        panels[0].lines.iter().map(|line| format!(r#"<tspan class="{}">{}</tspan>"#, line.tone, line.name)).collect();
    let [left, right] = panels.each_ref().map(|panel| panel.svg(most));
    let (names, x, width, height) =
        (names.join(", "), MARGIN + WIDTH + GAP, 2.0 * (MARGIN + WIDTH) + GAP, HEIGHT + 144.0);
    Some(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">
<title>{title}</title>
<style>{STYLE}</style>
<rect class="paper" width="{width}" height="{height}" rx="6"/>
<text x="{MARGIN}" y="40" class="title">{title}</text>
<text x="{MARGIN}" y="62">× Redis, by callers: {names}</text>
<g transform="translate({MARGIN} 96)">
{left}</g>
<g transform="translate({x} 96)">
{right}</g>
</svg>
"#
    ))
}

impl Panel {
    /// The most that its first contender decides.
    fn best(&self) -> Option<f64> {
        self.lines.first()?.points.iter().map(|point| point.1).max_by(f64::total_cmp)
    }

    fn svg(&self, most: f64) -> String {
        let x = |callers: u32| LEFT + 12.0 + (f64::from(callers) / 16.0).log2() / 6.0 * (WIDTH - LEFT - 44.0);
        let y = |ratio: f64| HEIGHT - ratio / most * (HEIGHT - 26.0);
        let mut parts = vec![format!(r#"<text class="name">{}</text>"#, self.title)];
        let steps = (0_u8..).take_while(|step| f64::from(*step) <= most);
        parts.extend(steps.map(|step| {
            let (y, x, tone) = (y(step.into()), LEFT - 8.0, if step == 1 { "redis" } else { "grid" });
            let line = format!(r#"<path class="{tone}" d="M{LEFT} {y:.1}H{WIDTH}"/>"#);
            format!(r#"{line}<text x="{x}" y="{y:.1}" dy=".32em" class="end">{step}</text>"#)
        }));
        parts.push(format!(r#"<text x="{LEFT}" y="{:.1}">Redis</text>"#, y(1.0) - 5.0));
        let callers = self.lines.iter().max_by_key(|line| line.points.len()).into_iter().flat_map(|line| &line.points);
        parts.extend(callers.map(|(callers, _)| {
            format!(r#"<text x="{:.1}" y="{}" class="middle">{callers}</text>"#, x(*callers), HEIGHT + 18.0)
        }));
        for Line { tone, points, .. } in &self.lines {
            let places: Vec<_> =
                points.iter().map(|(callers, ratio)| format!("{:.1} {:.1}", x(*callers), y(*ratio))).collect();
            parts.push(format!(r#"<path class="line {tone}" d="M{}"/>"#, places.join("L")));
            parts.extend(points.iter().map(|(callers, ratio)| {
                let (x, y) = (x(*callers), y(*ratio));
                format!(r#"<circle class="{tone}" cx="{x:.1}" cy="{y:.1}" r="3"><title>{ratio:.2}</title></circle>"#)
            }));
        }
        parts.join("\n") + "\n"
    }
}

const MARGIN: f64 = 24.0;
const GAP: f64 = 44.0;
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
/// Where a panel's lines begin, behind the numbers.
const LEFT: f64 = 24.0;

/// The colours of the playground's pictures.
const STYLE: &str = r#"
svg { --paper: #fcfcfb; --ink: #1c1e21; --faint: #646a73; --grid: #e2e4e7;
--one: #0072b2; --two: #00775a; --three: #c24e00; }
@media (prefers-color-scheme: dark) {
svg { --paper: #15171a; --ink: #e6e7e9; --faint: #9aa1ab; --grid: #2b2f35;
--one: #58b4e9; --two: #2fc29a; --three: #f08a4b; }
}
.paper { fill: var(--paper); }
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--faint); }
.title { font-size: 16px; font-weight: 600; fill: var(--ink); }
.name { font-size: 14px; font-weight: 600; fill: var(--ink); }
.end { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: var(--grid); }
.redis { stroke: var(--faint); stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.one { stroke: var(--one); } .line.two { stroke: var(--two); } .line.three { stroke: var(--three); }
circle.one, tspan.one { fill: var(--one); } circle.two, tspan.two { fill: var(--two); }
circle.three, tspan.three { fill: var(--three); }
"#;
