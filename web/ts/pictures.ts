// The pictures of the guides: drawn as the page draws, from what the core decides.
import { type Trial, record } from "./core";
import { type Frame, LEFT, RIGHT, bars, below, busiest, line } from "./plot";
import { type LimitForm, limit, triedOf } from "./scene";

/** The pictures by their names in `docs`. */
export function pictures(): { [name: string]: string } {
  return { "burst.svg": burst(), "kinds.svg": kinds() };
}

const WIDTH = 860;

/** A burst, its refusals, and a retry at the instant that they name. */
function burst(): string {
  const form = limit("api", "token_bucket", { rate: "2", per: "1s", capacity: "5" });
  // The first and the last cost nothing: they are where the picture begins and ends.
  const calls = [
    "0,0",
    ...Array<string>(8).fill("1,1"),
    "1.499999,1",
    ...[1.5, 2, 2.5, 3, 3.5].map((at) => `${at},1`),
    "6,0",
  ];
  const csv = `time,cost\n${calls.join("\n")}\n`;
  const { span, instants, costs, trials } = record({ limits: [triedOf(form)], csv });
  const trial = trials[0]!;
  const frame = { width: WIDTH, height: 150, span, labelled: false, step: 0.5 };
  const x = (micros: number) => LEFT + (micros / span) * (WIDTH - LEFT - RIGHT);
  const wait = trial.waits[8]! / 1e6;
  const early = trial.waits[9]!;
  const granted = trial.answers.slice(1, 9).filter((answer) => answer === 0).length;
  // A mark for each call, the first of an instant at the top.
  const marks: string[] = [];
  const rows = new Map<number, number>();
  instants.forEach((at, call) => {
    if (costs[call] === 0) return;
    const column = Math.round(x(at));
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    marks.push(mark(column, 158 + 9 * row, trial.answers[call] === 0));
  });
  const [first, second, third] = [1e6, 1e6 * (1 + wait), 3.5e6].map((at) => Math.round(x(at))) as [
    number,
    number,
    number,
  ];
  const notes = [
    leader(first, 14, 152),
    words(first + 12, 18, "granted", `eight calls at once: ${granted} are granted`),
    words(first + 12, 36, "refused", `${8 - granted} are refused, and told: in ${wait} s`),
    leader(second, 62, 152),
    words(second + 12, 66, "refused", `a microsecond early: refused, in ${early} µs`),
    words(second + 12, 84, "granted", `${wait} s later, as told: granted`),
    leader(third, 14, 152),
    words(third + 12, 18, "granted", "then one each half second: granted"),
  ];
  const plot = line(frame, trial.levels, 0, 5e6, { tone: "tokens", values: [0, 1e6, 5e6] });
  return svg(WIDTH, 306, "A refusal names the instant from which the same call is granted", [
    words(0, 22, "title", "A refusal names the instant from which the same call is granted"),
    `<text y="42"><tspan class="tokens">balance</tspan> of a token bucket of 2 a second, at most 5; below it each call, <tspan class="granted">● granted</tspan> or <tspan class="refused">× refused</tspan></text>`,
    placed(0, 56, plot + notes.join("") + marks.join("") + below({ ...frame, height: 252 })),
  ]);
}

/** A call: a disc if it was granted, else a cross. */
function mark(x: number, y: number, isGranted: boolean): string {
  if (isGranted) return `<circle class="granted" cx="${x}" cy="${y}" r="3.5"/>`;
  return `<path class="refused" d="M${x - 3} ${y - 3}l6 6m-6 0l6 -6"/>`;
}

/** From a note down to the calls that it is about. */
function leader(x: number, from: number, to: number): string {
  return `<path class="leader" d="M${x + 9} ${from}H${x}V${to}"/>`;
}

/** The same calls under each kind. */
function kinds(): string {
  const minute = { rate: "100", per: "1m" };
  const shown: [LimitForm, string][] = [
    [limit("token_bucket", "token_bucket", minute), "tokens drip back all the time"],
    [limit("fixed_window", "fixed_window", { ...minute, start: "0s" }), "all come back as a minute starts"],
    [limit("stepped_bucket", "stepped_bucket", minute), "all come back a minute after the first call"],
    [limit("sliding_window", "sliding_window", minute), "each comes back a minute after it was granted"],
    [limit("concurrency", "concurrency", minute), "each comes back as its work of 3 s ends"],
    [limit("wallet", "wallet"), "none comes back: 150 were bought"],
  ];
  const traffic = [
    "constant rate=5 per=1s from=30s for=20s",
    "burst size=60 every=10s from=65s for=1s",
    "constant rate=2 per=1s from=90s for=60s",
  ];
  const limits = shown.map(([form]) => triedOf(form));
  const { span, instants, trials } = record({ limits, traffic, work: "3s", funds: "150" });
  const [gap, top, high] = [20, 58, 232];
  const width = (WIDTH - gap) / 2;
  const frame: Frame = { width, height: 92, span, labelled: false, step: 0.5 };
  const cells = shown.map(([form, point], place) => {
    const trial = trials[place]!;
    const plots = [
      words(0, 16, "name", form.name),
      words(width - RIGHT, 16, "end", counted(trial)),
      words(0, 34, "", point),
      placed(0, 42, line(frame, trial.levels, 0, most(trials), { tone: "tokens", values: [0, 100e6, 150e6] })),
      placed(0, 134, bars({ ...frame, height: 74, labelled: true }, instants, trial.answers, busiest(frame, instants))),
    ];
    return placed((place % 2) * (width + gap), top + Math.floor(place / 2) * high, plots.join(""));
  });
  const title = `How tokens come back decides which of the same ${instants.length} calls are refused`;
  return svg(WIDTH, top + 3 * high, title, [
    words(0, 22, "title", title),
    `<text y="42">5 a second, then 60 at once, then 2 a second: the <tspan class="tokens">balance</tspan>, and the calls, <tspan class="granted">granted</tspan>, on top <tspan class="refused">refused</tspan></text>`,
    ...cells,
  ]);
}

function counted({ figures }: Trial): string {
  return `${figures.granted} granted, ${figures.refused} refused`;
}

function most(trials: Trial[]): number {
  return Math.max(
    ...trials.flatMap((trial) =>
      trial.levels.filter((_, place) => place % 2 === 1).reduce((one, other) => Math.max(one, other), 0),
    ),
  );
}

function words(x: number, y: number, tone: string, text: string): string {
  return `<text x="${x.toFixed(1)}" y="${y}" class="${tone}">${text}</text>`;
}

function placed(x: number, y: number, content: string): string {
  return `<g transform="translate(${x} ${y})">${content}</g>`;
}

function svg(width: number, height: number, title: string, content: string[]): string {
  const [wide, high] = [width + 2 * MARGIN, height + 2 * MARGIN];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${wide} ${high}" width="${wide}" height="${high}" role="img" aria-label="${title}">
<title>${title}</title>
<style>${STYLE}</style>
<rect class="paper" width="${wide}" height="${high}" rx="6"/>
<g transform="translate(${MARGIN} ${MARGIN})">
${content.join("\n")}
</g>
</svg>
`;
}

const MARGIN = 18;
// The colours of the page.
const STYLE = `
svg { --paper: #fcfcfb; --ink: #1c1e21; --faint: #646a73; --grid: #e2e4e7; --tokens: #0072b2; --granted: #00775a; --refused: #c24e00; }
@media (prefers-color-scheme: dark) {
svg { --paper: #15171a; --ink: #e6e7e9; --faint: #9aa1ab; --grid: #2b2f35; --tokens: #58b4e9; --granted: #2fc29a; --refused: #f08a4b; }
}
.paper { fill: var(--paper); }
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--faint); }
.title { font-size: 16px; font-weight: 600; fill: var(--ink); } .name { font-size: 14px; font-weight: 600; fill: var(--ink); }
.end { text-anchor: end; } .grid { stroke: var(--grid); }
.line { fill: none; stroke: var(--tokens); stroke-width: 1.5; stroke-linejoin: round; } .area { fill: var(--tokens); opacity: .13; }
.bar.granted, text.granted, tspan.granted { fill: var(--granted); } .bar.refused { stroke: var(--refused); stroke-dasharray: 2.5 1; fill: none; } text.refused, tspan.refused { fill: var(--refused); }
circle.granted { fill: var(--granted); } path.refused:not(.bar) { stroke: var(--refused); stroke-width: 2; } .leader { fill: none; stroke: var(--faint); }
tspan.tokens { fill: var(--tokens); }
`;
