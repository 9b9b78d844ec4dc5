// Plots as SVG texts. They are drawn once for a scene: what moves is a line above them.

/** Instants on the horizontal axis, in microseconds. */
export interface Frame {
  width: number;
  height: number;
  span: number;
  /** Whether the instants are written below. */
  labelled: boolean;
  /** How far apart they are, in the unit of the span. */
  step?: number;
}

/** Where the area of a plot begins and ends. */
export const LEFT = 46;
export const RIGHT = 10;
const TOP = 8;
const BELOW = 20;

/** A line through points (instant and micro-tokens, in turn), from `low` to `high`. */
export function line(frame: Frame, points: Float64Array, low: number, high: number, parts: LineParts): string {
  const y = vertical(frame, low, high);
  const path = traced(frame, points, y);
  const values =
    parts.values ?? (parts.bound === undefined ? (low < 0 ? [low, 0, high] : [0, high / 2, high]) : [0, parts.bound]);
  const zero = y(Math.max(low, 0)).toFixed(1);
  const area = `${path}V${zero}H${LEFT}Z`;
  const bound =
    parts.bound === undefined
      ? ""
      : `<path class="bound" d="M${LEFT} ${y(parts.bound).toFixed(1)}H${frame.width - RIGHT}"/>`;
  return svg(
    frame,
    `${axes(frame, values, y, 1e6)}<path class="area ${parts.tone}" d="${area}"/><path class="line ${parts.tone}" d="${path}"/>${bound}`,
  );
}

export interface LineParts {
  tone: string;
  /** A line that is not crossed. */
  bound?: number;
  /** Where lines lie, if not where they do for all. */
  values?: number[];
}

/**
 * Calls as bars: granted calls below, those of them that failed above, refused ones on top and striped. A line leads from a bar to the last instant that
 * one of its calls got as an answer, with a mark at each such instant.
 */
export function bars(
  frame: Frame,
  instants: Float64Array,
  answers: Uint8Array,
  most: number,
  waits?: Float64Array,
): string {
  const count = barsOf(frame);
  const told: Set<number>[] = [];
  const [granted, failed, refused] = [0, 0, 0].map(() => new Float64Array(count)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  instants.forEach((at, call) => {
    const bar = Math.min(count - 1, Math.floor((at / frame.span) * count));
    const which = answers[call] === 0 ? granted : answers[call] === 3 ? failed : refused;
    which[bar] = (which[bar] ?? 0) + 1;
    const wait = waits?.[call] ?? 0;
    if (wait > 0)
      (told[bar] ??= new Set()).add(Math.round(LEFT + Math.min((at + wait) / frame.span, 1) * inner(frame)));
  });
  const y = vertical(frame, 0, most);
  // One call among hundreds is seen, too.
  const high = (calls: number) => Math.max(2, y(0) - y(calls));
  const wide = inner(frame) / count;
  let [good, lost, bad, lines] = ["", "", "", ""];
  for (let place = 0; place < count; place += 1) {
    const [some, fails, others] = [granted[place] ?? 0, failed[place] ?? 0, refused[place] ?? 0];
    const x = (LEFT + place * wide).toFixed(1);
    const bar = (low: number, calls: number) =>
      `M${x} ${low.toFixed(1)}h${(wide - 1).toFixed(1)}v${(-high(calls)).toFixed(1)}h${(1 - wide).toFixed(1)}z`;
    const base = y(0) - (some > 0 ? high(some) : 0);
    const edge = base - (fails > 0 ? high(fails) : 0);
    if (some > 0) good += bar(y(0), some);
    if (fails > 0) lost += bar(base, fails);
    // A stroke as wide as a bar, which is striped as it is dashed.
    if (others > 0)
      bad += `M${(LEFT + place * wide + (wide - 1) / 2).toFixed(1)} ${edge.toFixed(1)}v${(-high(others)).toFixed(1)}`;
    const ends = [...(told[place] ?? [])];
    const top = (edge - (others > 0 ? high(others) : 0)).toFixed(1);
    if (ends.length > 0) lines += `M${x} ${top}H${Math.max(...ends)}${ends.map((end) => `M${end} ${top}v5`).join("")}`;
  }
  return svg(
    frame,
    `${axes(frame, most % 2 === 0 ? [0, most / 2, most] : [0, most], y, 1)}<path class="bar granted" d="${good}"/>${lost && `<path class="bar failed" d="${lost}"/>`}<path class="bar refused" stroke-width="${(wide - 1).toFixed(1)}" d="${bad}"/><path class="wait" d="${lines}"/>`,
  );
}

/** The most calls of any bar. */
export function busiest(frame: Frame, instants: Float64Array): number {
  const calls = new Map<number, number>();
  for (const at of instants) {
    const bar = Math.floor((at / frame.span) * barsOf(frame));
    calls.set(bar, (calls.get(bar) ?? 0) + 1);
  }
  return Math.max(1, ...calls.values());
}

/** A span in the unit that suits it. */
export function spanText(micros: number): string {
  const [unit, word, digits] = unitOf(micros);
  return `${trimmed(micros / unit, digits)} ${word}`;
}

/** An instant in the unit of the whole scene. */
export function instantText(micros: number, span: number): string {
  const [unit, word] = unitOf(span);
  return `${(micros / unit).toFixed(span / unit < 10 ? 3 : 2)} ${word}`;
}

/** Micro-tokens as tokens. */
export function tokensText(micros: number): string {
  return trimmed(micros / 1e6, 6).replace("-", "−");
}

/** A balance, to two decimals and never more than it is: with 0.996 a call of 1 is refused. */
export function balanceText(micros: number): string {
  return tokensText(Math.floor(micros / 1e4) * 1e4);
}

function unitOf(micros: number): [number, string, number] {
  if (micros < 1e3) return [1, "µs", 0];
  if (micros < 1e6) return [1e3, "ms", 1];
  if (micros <= 120e6) return [1e6, "s", 2];
  if (micros <= 7200e6) return [60e6, "min", 1];
  return micros <= 172_800e6 ? [3600e6, "h", 1] : [86_400e6, "d", 1];
}

function trimmed(value: number, digits: number): string {
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const inner = (frame: Frame) => frame.width - LEFT - RIGHT;
const barsOf = (frame: Frame) => Math.max(20, Math.floor(inner(frame) / 5));
const bottom = (frame: Frame) => frame.height - (frame.labelled ? BELOW : 6);

function vertical(frame: Frame, low: number, high: number): (value: number) => number {
  return (value) => bottom(frame) - ((value - low) / (high - low)) * (bottom(frame) - TOP);
}

/** A path of at most four points a pixel: the first, the least, the most and the last. */
function traced(frame: Frame, points: Float64Array, y: (value: number) => number): string {
  const scale = inner(frame) / frame.span;
  const path: string[] = [];
  let column = -1;
  let [least, most, last] = [0, 0, 0];
  const point = (value: number) =>
    path.push(`${path.length === 0 ? "M" : "L"}${(LEFT + column).toFixed(0)} ${y(value).toFixed(1)}`);
  for (let place = 0; place < points.length; place += 2) {
    const [at, value] = [points[place] ?? 0, points[place + 1] ?? 0];
    const pixel = Math.round(at * scale);
    if (pixel !== column) {
      if (column >= 0 && most > least) [least, most, last].forEach(point);
      column = pixel;
      [least, most] = [value, value];
      point(value);
    }
    [least, most, last] = [Math.min(least, value), Math.max(most, value), value];
  }
  if (most > least) [least, most, last].forEach(point);
  return path.join("");
}

/** A line at each value, with what it is in this unit. */
function axes(frame: Frame, values: number[], y: (value: number) => number, unit: number): string {
  const far = values.filter((value, place) => place === 0 || Math.abs(y(value) - y(values[place - 1] ?? 0)) > 12);
  const marks = far.map((value) => {
    const at = y(value).toFixed(1);
    return `<path class="grid" d="M${LEFT} ${at}H${frame.width - RIGHT}"/><text x="${LEFT - 6}" y="${at}" dy=".32em" text-anchor="end">${short(value / unit)}</text>`;
  });
  return marks.join("") + (frame.labelled ? below(frame) : "");
}

/** Round instants: at most six. */
export function below(frame: Frame): string {
  const [unit, word] = unitOf(frame.span);
  const span = frame.span / unit;
  const rough = span / (frame.width < 450 ? 3.5 : 6);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = frame.step ?? [1, 2, 5, 10].map((times) => times * power).find((wide) => wide >= rough) ?? rough;
  let marks = "";
  for (let at = 0; at <= span * 1.0001; at += step) {
    const x = LEFT + (at / span) * inner(frame);
    const anchor = x > frame.width - RIGHT - 16 ? "end" : "middle";
    marks += `<text x="${Math.min(x, frame.width - 1).toFixed(1)}" y="${frame.height - 4}" text-anchor="${anchor}">${trimmed(at, 3)} ${word}</text>`;
  }
  return marks;
}

function short(value: number): string {
  const size = Math.abs(value);
  const text =
    size >= 1e6 ? `${trimmed(size / 1e6, 1)}M` : size >= 1e4 ? `${trimmed(size / 1e3, 1)}k` : trimmed(size, 1);
  return value < 0 ? `−${text}` : text;
}

function svg(frame: Frame, content: string): string {
  return `<svg viewBox="0 0 ${frame.width} ${frame.height}" width="${frame.width}" height="${frame.height}" aria-hidden="true">${content}</svg>`;
}
