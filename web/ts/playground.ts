// The page: what is filled in becomes a scene, the core records it, and a cursor plays the record.
import { Answer, END, type Fault, Faulty, type Record, type Slices, type Trial, record, recorded, rust } from "./core";
import { complain, limitEditor, put } from "./form";
import { LEFT, RIGHT, balanceText, bars, busiest, instantText, line, spanText, tokensText } from "./plot";
import { PRESETS } from "./presets";
import {
  type Asking,
  type LimitForm,
  type State,
  WORDS,
  askingOf,
  commandOf,
  hashOf,
  sceneOf,
  stateOf,
  tomlOf,
  triedOf,
} from "./scene";
import { askedOf, chosen } from "./suggestion";
import { suggestionPanel } from "./suggestion-panel";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const TEXTS = [...WORDS, "lend"] as const;
const calls = at<HTMLTextAreaElement>("calls");
const SIDES = ["A", "B"] as const;
/** Rows of the table of calls. */
const ROWS = 8;
/** How long the whole scene plays, in milliseconds. */
const WHOLE = 12_000;
/** How long the page records in a frame, in milliseconds: the rest of it is for drawing, and for whoever types. */
const BUDGET = 8;
const SPAN_STEPS = 1000;
/** Of so many callers one is chosen. */
const MOST_KEYS = 200;
/** Browsers bear a new address so often, in milliseconds: WebKit a hundred times in half a minute. */
const PATIENCE = 400;
/** What is said of a call that ends, as the core numbers it. */
const ENDED = ["its work ends", "nobody has settled it, it lapses", "its lease runs out"];

/** What happens at an instant: a call is made, or one ends, under the limits of these sides. */
interface Step {
  at: number;
  call: number;
  /** How it ends; `undefined` where it is made. */
  by?: number;
  sides: number[];
  /** How many calls are made by then. */
  made: number;
  /** How many numbers of the levels tell of the time up to it, of each of these sides. */
  seen: number[];
}

let state: State = stateOf(location.hash) ?? structuredClone(PRESETS[0]!.state);
let csv = "";
let file = "";
let shown: Record;
/** The scene that `shown` is the record of: the last one without faults. */
let good: State = state;
/** What is being recorded, if something is, and the newest scene: it is next, if it is another. */
let pending: Slices | undefined;
let newest: Slices | undefined;
/** Whether the cursor goes to the end of what is shown next. */
let toEnd = false;
/** How many calls of each trial were granted before each call and did not fail, and how many failed. */
let sums: { granted: Uint32Array; failed: Uint32Array }[] = [];
let now = 0;
/** What happens, in its order, and how much of it has happened. */
let steps: Step[] = [];
let done = 0;
/** All who call, in the order of their first calls. */
let keys: string[] = [];
let playing: { since: number; from: number } | undefined;
let language: "rust" | "toml" | "command" = "rust";

const editors = SIDES.map((side, place) =>
  limitEditor(`limit-${side.toLowerCase()}`, `Limit ${side}`, (form) =>
    change({ limits: state.limits.with(place, form) }),
  ),
);

const suggestAbout = suggestionPanel(
  () => {
    const limit = askedOf(state.limits[0]!);
    return { scene: sceneOf({ ...state, limits: [limit] }, csv), limit };
  },
  (choice) => change({ limits: state.limits.with(0, chosen(state.limits[0]!, choice)) }),
);

// The fields.

function change(part: Partial<State>): Promise<boolean> {
  state = { ...state, ...part };
  at<HTMLSelectElement>("preset").value = "";
  at("point").textContent = "";
  return update("keep");
}

/** Records the scene frame by frame, then shows it; says whether it did: it may have faults, or a newer one comes. */
async function update(cursor: "keep" | "end"): Promise<boolean> {
  const own = state;
  const slices = recorded(sceneOf(own, csv));
  try {
    // Faults of the first slice come at once, and take the place of no other scene.
    let record = slice(slices);
    fill([]);
    [newest, toEnd] = [slices, toEnd || cursor === "end"];
    at("trials").ariaBusy = "true";
    // The recording appears before it is complete, so that the picture follows a slider.
    while (pending !== undefined) {
      await new Promise(requestAnimationFrame);
      if (newest !== slices) return false;
    }
    pending = slices;
    while (record === undefined) {
      await new Promise(requestAnimationFrame);
      record = slice(slices);
    }
    show(record, own, toEnd);
    toEnd = false;
    remember();
  } catch (error) {
    if (!(error instanceof Faulty)) throw error;
    if (state === own) fill(error.faults);
    return false;
  } finally {
    slices.return(undefined as never);
    if (pending === slices) pending = undefined;
    if (newest === slices) newest = undefined;
    at("trials").ariaBusy = `${newest !== undefined}`;
  }
  return true;
}

let remembered = 0;
let remembering: ReturnType<typeof setTimeout> | undefined;

/** Has the address hold what is shown; not each time at once. */
function remember(): void {
  if (remembering !== undefined) return;
  const write = () => {
    remembering = undefined;
    remembered = performance.now();
    history.replaceState(null, "", hashOf(good));
  };
  const rest = remembered + PATIENCE - performance.now();
  if (remembered === 0 || rest <= 0) write();
  else remembering = setTimeout(write, rest);
}

/** Forgets what was to be written. */
function forgetAddress(): void {
  clearTimeout(remembering);
  remembering = undefined;
}

/** Records for as long as a frame has time for it. */
function slice(slices: Slices): Record | undefined {
  const began = performance.now();
  do {
    const { done, value } = slices.next();
    if (done) return value;
  } while (performance.now() - began < BUDGET);
  return undefined;
}

function show(record: Record, of: State, toEnd: boolean): void {
  const atEnd = toEnd || now >= shown.span;
  [shown, good] = [record, of];
  sums = record.trials.map((trial) => ({ granted: sumsOf(trial, Answer.Granted), failed: sumsOf(trial, Answer.Failed) }));
  steps = stepsOf(record);
  keys = [...new Set(record.keys)];
  draw();
  seek(atEnd ? record.span : now);
}

function fill(faults: Fault[]): void {
  state.limits.forEach((form, place) => {
    const start = `limits.${place}.`;
    const own = faults.filter((fault) => fault.place.startsWith(start));
    editors[place]!.show(form, new Map(own.map((fault) => [fault.place.slice(start.length), fault.message])));
  });
  editors[1]!.element.hidden = state.limits.length < 2;
  at("compare").textContent = state.limits.length < 2 ? "Compare with a second limit" : "Only limit A";
  const told = (start: string) => faults.find((fault) => fault.place.startsWith(start))?.message;
  if (calls !== document.activeElement) put(calls, state.calls);
  complain(calls, at("calls-fault"), told("traffic"));
  at("lending").hidden = state.limits.length < 2;
  at<HTMLSelectElement>("asking").value = state.asking;
  at<HTMLInputElement>("lend").disabled = state.asking !== "lend";
  for (const name of TEXTS) {
    const input = at<HTMLInputElement>(name);
    put(input, state[name]);
    complain(input, at(`${name}-fault`), told(name));
  }
  complain(null, at("csv-fault"), told("csv"));
  complain(null, at("scene-fault"), told("scene") ?? told("clicks"));
  at<HTMLInputElement>("reserve").checked = state.reserve;
  at<HTMLButtonElement>("forget").disabled = state.clicks.length === 0;
  at("recorded").hidden = csv === "";
  const { name, kind, per, global } = state.limits[0]!;
  suggestAbout(csv, name, kind, per, `${global}`, `${state.clicks}`);
  calls.disabled = csv !== "";
}

// The pictures and texts.

function draw(): void {
  const place = at("trials");
  place.dataset["count"] = `${good.limits.length}`;
  if (place.childElementCount !== good.limits.length)
    place.innerHTML = good.limits.map((_, side) => panel(side)).join("");
  const width = Math.max(260, Math.floor(place.querySelector<HTMLElement>(".plots")!.clientWidth));
  const lows = shown.trials.map((trial) => extreme(trial.levels, Math.min));
  const highs = shown.trials.map((trial) => extreme(trial.levels, Math.max));
  // Both are drawn on the same axes, so that they compare.
  const low = Math.min(0, ...lows);
  const high = Math.max(low + 1e6, ...highs);
  const frame = { width, height: 120, span: shown.span, labelled: false };
  const least = Math.min(0, ...shown.trials.map((trial) => extreme(trial.used, Math.min)));
  const bounds = shown.trials.map((trial) => (trial.bound < Infinity ? trial.bound : extreme(trial.used, Math.max)));
  const highest = Math.max(1e6, ...bounds);
  const most = busiest(frame, shown.instants);
  shown.trials.forEach((trial, side) => {
    const form = good.limits[side]!;
    const part = (name: string) => place.children[side]!.querySelector<HTMLElement>(`.${name}`)!;
    const asking = side === 1 ? askingOf(good) : "alone";
    part("name").textContent = named(side);
    part("kind").textContent =
      asking === "lend"
        ? `lent above ${good.lend || 0}`
        : asking === "in_turn"
          ? `balance of ${form.name}`
          : form.kind.replace("_", " ");
    part("callers").textContent = callers(trial);
    part("got").textContent = got();
    part("fails").hidden = good.service === "";
    part("calls-title").innerHTML =
      `calls: <span class="granted">${got()}</span>, ${good.service === "" ? "" : '<span class="failed">failed</span>, '}on top <span class="refused">refused</span>; lines are waits`;
    part("balance").innerHTML = line(frame, trial.levels, low, high, { tone: "tokens" });
    part("answers").innerHTML = bars({ ...frame, height: 90 }, shown.instants, trial.answers, most, trial.waits);
    const caller = form.global ? "all callers" : watched() || "all callers";
    part("balance-title").textContent = `balance of ${caller}, in tokens`;
    const told = trial.bound < Infinity ? `never above ${tokensText(trial.bound)}` : "reservations are unbounded";
    part("bound-title").innerHTML = `${escaped(used(form, caller))}: <span class="told">${told}</span>`;
    const bounded = trial.bound < Infinity ? { tone: "used", bound: trial.bound } : { tone: "used" };
    part("used").innerHTML = line({ ...frame, labelled: true }, trial.used, least, highest, bounded);
    part("sum").textContent = summary(side, trial);
  });
  const watch = at<HTMLSelectElement>("watch");
  watch.replaceChildren(...keys.slice(0, MOST_KEYS).map((key) => new Option(key || "all callers", key)));
  watch.value = watched();
  watch.disabled = keys.length < 2;
  at("heads").innerHTML =
    `<tr><th scope="col">at</th><th scope="col">caller</th><th scope="col">cost</th>${good.limits.map((_, side) => `<th scope="col">${escaped(named(side))}</th>`).join("")}</tr>`;
  write();
}

/** The limits that are asked on a side. */
function named(side: number): string {
  const names = good.limits.map((form) => form.name);
  const asking = side === 1 ? askingOf(good) : "alone";
  return asking === "alone" ? names[side]! : names.join(asking === "lend" ? " and " : ", else ");
}

/** Whose balance is shown. */
function watched(): string {
  return keys.includes(good.watch) ? good.watch : (keys[0] ?? "");
}

function panel(side: number): string {
  return `<article class="trial" aria-labelledby="name-${side}"><h2><span class="side">${SIDES[side]}</span> <span class="name" id="name-${side}"></span> <span class="kind"></span><span class="kind share"></span></h2>
    <dl><div><dt class="got"></dt><dd class="granted"></dd></div><div class="fails"><dt>failed</dt><dd class="failed"></dd></div><div><dt>refused</dt><dd class="refused"></dd></div><div><dt>balance</dt><dd class="left"></dd></div></dl>
    <p class="callers"></p><p class="sum hidden"></p>
    <div class="plots" data-plots><h3 class="balance-title"></h3><div class="balance"></div>
    <h3 class="calls-title"></h3><div class="answers"></div>
    <h3 class="bound-title"></h3><div class="used"></div><div class="later"></div></div></article>`;
}

/** What a call is that was granted, and did not fail at the service. */
function got(): string {
  return good.service === "" ? "granted" : "served";
}

/** What the last plot shows. */
function used(form: LimitForm, caller: string): string {
  const comesBack = good.used !== "" || good.lapses_after !== "";
  switch (form.kind) {
    case "concurrency":
      return `held by ${caller} at once`;
    case "wallet":
      return `granted to ${caller}${comesBack ? ", less what came back" : ""}`;
    default:
      if (!comesBack) return `granted to ${caller} in the last ${form.per}`;
      // As the promise counts it.
      return `granted to ${caller} in the last ${form.per}, less what came back${form.kind.endsWith("window") ? " of it" : " in it"}`;
  }
}

/** What each caller got of its calls; those of one name with numbers are one. */
function callers(trial: Trial): string {
  const counts = new Map<string, [granted: number, calls: number]>();
  // Keys are few and calls are many, so what costs time is done once a key.
  const names = new Map<string, string>();
  shown.keys.forEach((key, call) => {
    const name = names.get(key) ?? (key.replace(/-\d+$/, "") || "all callers");
    names.set(key, name);
    const [granted, calls] = counts.get(name) ?? [0, 0];
    counts.set(name, [granted + (trial.answers[call] === Answer.Granted ? 1 : 0), calls + 1]);
  });
  return `${got()} in all: ${[...counts].map(([name, [granted, calls]]) => `${name} ${granted} of ${calls}`).join(", ")}`;
}

function summary(side: number, { figures }: Trial): string {
  const { calls, granted, failed, impossible, longest, latest } = figures;
  const never = impossible > 0 ? ` ${impossible} of these cost more than can ever be granted.` : "";
  const worst = longest > 0 ? ` The longest wait told was ${spanText(longest)}.` : "";
  const last = latest > 0 ? ` The longest wait of a reservation is ${spanText(latest)}.` : "";
  const fails = good.service === "" ? "" : `, ${failed} fail`;
  return `${named(side)}: of ${calls} calls ${granted} are ${got()}${fails} and ${calls - granted - failed} refused.${never}${worst}${last}`;
}

/** Moves the cursor, and tells what is there: all that happens by then, or so many steps of it. */
function seek(to: number, by = stepsBy(to)): void {
  now = Math.max(0, Math.min(to, shown.span));
  done = by;
  const calls = steps[done - 1]?.made ?? 0;
  const cursor = at<HTMLInputElement>("cursor");
  cursor.value = `${Math.round((now / shown.span) * SPAN_STEPS)}`;
  at("clock").textContent = instantText(now, shown.span);
  cursor.setAttribute("aria-valuetext", instantText(now, shown.span));
  shown.trials.forEach((trial, side) => {
    const element = at("trials").children[side] as HTMLElement;
    element.style.setProperty("--now", `${now / shown.span}`);
    const tell = (name: string, text: string) => {
      element.querySelector(`dd.${name}`)!.textContent = text;
    };
    const [granted, failed] = [sums[side]!.granted[calls]!, sums[side]!.failed[calls]!];
    tell("granted", `${granted}`);
    tell("failed", `${failed}`);
    tell("refused", `${calls - granted - failed}`);
    const share = trial.shares[calls - 1] ?? 1;
    element.querySelector(".share")!.textContent = share < 1 ? `, at ${Math.round(share * 100)} % of its rate` : "";
    tell("left", balanceText(level(trial, side)));
  });
  table(calls);
}

function table(calls: number): void {
  const rows = Array.from({ length: ROWS }, (_, row) => {
    const call = calls - 1 - row;
    if (call < 0) return `<tr>${"<td>&nbsp;</td>".repeat(3 + shown.trials.length)}</tr>`;
    const answers = shown.trials.map((trial) => {
      const [tone, text] = answerOf(trial, call);
      return `<td class="${tone}">${text}</td>`;
    });
    const [instant, cost] = [shown.instants[call]!, shown.costs[call]!];
    return `<tr><td>${instantText(instant, shown.span)}</td><td>${escaped(shown.keys[call] || "all")}</td><td>${tokensText(cost)}</td>${answers.join("")}</tr>`;
  });
  at("events").innerHTML = rows.join("");
}

function answerOf(trial: Trial, call: number): [string, string] {
  const [wait, left] = [trial.waits[call]!, balanceText(trial.balances[call]!)];
  switch (trial.answers[call] as Answer) {
    case Answer.Granted:
      return wait > 0 ? ["granted", `granted, ready in ${spanText(wait)}`] : ["granted", `granted, ${left} left`];
    case Answer.Failed:
      return ["failed", `granted, but it fails, ${left} left`];
    case Answer.Refused:
      return ["refused", wait < 0 ? "refused, no wait helps" : `refused, try in ${spanText(wait)}`];
    case Answer.Impossible:
      return ["refused", "an error: more than it can ever grant"];
  }
}

// The playback.

function play(): void {
  if (playing !== undefined) return pause();
  if (now >= shown.span) seek(0);
  playing = { since: performance.now(), from: now };
  at("play").textContent = "Pause";
  requestAnimationFrame(frame);
}

function pause(): void {
  playing = undefined;
  at("play").textContent = "Play";
}

function frame(time: number): void {
  if (playing === undefined) return;
  const times = Number(at<HTMLSelectElement>("speed").value);
  const elapsed = Math.max(0, time - playing.since);
  seek(playing.from + (times === 0 ? (elapsed / WHOLE) * shown.span : elapsed * 1000 * times));
  if (now >= shown.span) return pause();
  requestAnimationFrame(frame);
}

/** Goes one step on, or one back. */
function step(by: 1 | -1): void {
  pause();
  const to = Math.max(0, done + by);
  if (to > steps.length) return seek(shown.span);
  const last = steps[to - 1];
  seek(last?.at ?? 0, to);
  say(last === undefined ? "before the first call" : told(last));
}

function told({ at, call, by, sides }: Step): string {
  const each = sides.map((side) => {
    const trial = shown.trials[side]!;
    return `${named(side)}: ${by === undefined ? answerOf(trial, call)[1] : `${ENDED[by]}, ${balanceText(level(trial, side))} left`}`;
  });
  return `${instantText(at, shown.span)}, ${shown.keys[call] || "all"}: ${each.join("; ")}`;
}

function say(text: string): void {
  at("said").textContent = text;
}

async function callNow(): Promise<void> {
  const instant = Math.floor(now);
  const clicks = [...state.clicks, instant].sort((one, other) => one - other);
  const isShown = await change({ clicks });
  const trial = shown.trials[0];
  const call = last(shown.instants.length, (place) => shown.instants[place]! <= instant) - 1;
  if (isShown && trial !== undefined) say(`your call: ${answerOf(trial, call)[1]}`);
}

// The texts to copy, and the files to save.

function write(): void {
  at("text").textContent = text();
}

function text(): string {
  switch (language) {
    case "rust": {
      const parts = good.limits.map(
        (form) => /^const (\w+)(.* = )(.*)$/.exec(rust(triedOf(form)))!.slice(1) as [string, string, string],
      );
      const [own, other] = parts;
      if (own?.[0] === other?.[0] && other !== undefined) other[0] += "_2";
      // A name in quotes is no constant.
      const words = new Set(
        parts.flatMap(([, , expression]) => expression.replaceAll(/"(\\.|[^"\\])*"/g, "").match(/\w+/g) ?? []),
      );
      const names = [
        "Limit",
        ...["DAY", "HOUR", "MINUTE", "SECOND", "Tokens"].filter((word) => words.has(word)),
      ].sort();
      const duration = words.has("Duration") ? "use std::time::Duration;\n" : "";
      const uses = `${duration}use tollgate::${names.length > 1 ? `{${names.join(", ")}}` : "Limit"};`;
      const constants = parts.map(([name, ...rest]) => `const ${name}${rest.join("")}`);
      return [
        uses,
        constants.join("\n"),
        asked(parts.map(([name]) => name))
          .map((line) => `// ${line}`)
          .join("\n"),
      ].join("\n\n");
    }
    case "toml":
      return good.limits.map(tomlOf).join("\n\n");
    case "command":
      return commandOf(good, file, shown.keys[0] || "you");
  }
}

/** How the constants of these names are asked, and what is done besides. */
function asked(names: string[]): string[] {
  const lapses = good.lapses_after ? `.lapses_after(/* ${good.lapses_after} */)` : "";
  const keyed = good.limits.map((form, side) => `${names[side]}.${form.global ? "global()" : "key(caller)"}`);
  const [own = "", other = ""] = keyed.map((request) => request + lapses);
  const lines = keyed
    .filter((_, side) => good.funds !== "" && good.limits[side]!.kind === "wallet")
    .map((request) => `gate.credit(${request}.cost(/* ${good.funds} */)).await?`);
  const asking = askingOf(good);
  if (asking === "lend")
    lines.push(
      `gate.consume(first_of([vec![${own}, ${other}], vec![${other}.leaving(/* ${good.lend || 0} */)]])).await?`,
    );
  if (asking === "in_turn") lines.push(`gate.consume(first_of([${own}, ${other}])).await?`);
  const verb = (form: LimitForm) => (form.kind === "concurrency" ? "acquire" : good.reserve ? "reserve" : "consume");
  if (asking === "alone")
    lines.push(...good.limits.map((form, side) => `gate.${verb(form)}(${keyed[side]}${lapses}).await?`));
  good.limits.forEach(({ follows }, side) => {
    if (follows !== "")
      lines.push(
        `if it fails: overrides.slow_down(${names[side]}.global(), &SlowDown::new().recovers(/* ${follows} */)).await?`,
      );
  });
  if (good.work !== "" && good.used !== "")
    lines.push(`after ${good.work}: gate.settle(grant, /* ${good.used} */).await?`);
  else if (good.work !== "" && good.limits.some((form) => form.kind === "concurrency"))
    lines.push(`after ${good.work}: lease.release().await?`);
  return lines;
}

async function copy(button: HTMLElement, copied: string): Promise<void> {
  const word = (button.dataset["word"] ??= button.textContent ?? "");
  try {
    await navigator.clipboard.writeText(copied);
  } catch {
    // Without the right to the clipboard, by the selection.
    const field = document.createElement("textarea");
    field.value = copied;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  say("copied");
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = word), 1500);
}

// Records.

/** How much happens by an instant: nothing by the start, so that the first call is a step. */
function stepsBy(instant: number): number {
  return instant <= 0 ? 0 : last(steps.length, (place) => steps[place]!.at <= instant);
}

/** How many come before the first that is not so. */
function last(count: number, isSo: (place: number) => boolean): number {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isSo(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Calls, and ends of calls in between: those of both sides are one step where they are the same. */
function stepsOf({ instants, trials }: Record): Step[] {
  const all: Step[] = [];
  const places = trials.map(() => 0);
  const sides = trials.map((_, side) => side);
  for (let call = 0; call <= instants.length; call += 1) {
    for (;;) {
      const heads = sides.map(
        (side) =>
          [...trials[side]!.ends.subarray(places[side], places[side]! + END.length)] as [
            number,
            number,
            number,
            number,
            number,
          ],
      );
      const due = sides.filter((side) => heads[side]!.length > 0 && heads[side]![3] <= call);
      const first = due.sort(
        (one, other) => heads[one]![0] - heads[other]![0] || heads[one]![1] - heads[other]![1] || one - other,
      )[0];
      if (first === undefined) break;
      const [at, of, by] = heads[first]!;
      const same = due.filter((side) => heads[side]![0] === at && heads[side]![1] === of && heads[side]![2] === by);
      all.push({ at, call: of, by, sides: same, made: call, seen: same.map((side) => heads[side]![4]) });
      for (const side of same) places[side]! += END.length;
    }
    if (call < instants.length)
      all.push({ at: instants[call]!, call, sides, made: call + 1, seen: trials.map((trial) => trial.seen[call]!) });
  }
  return all;
}

function sumsOf(trial: Trial, of: Answer): Uint32Array {
  const sums = new Uint32Array(trial.answers.length + 1);
  trial.answers.forEach((answer, call) => (sums[call + 1] = sums[call]! + (answer === of ? 1 : 0)));
  return sums;
}

/** The balance at the cursor: as it was noted last, or, with more to come at this instant, at the last step. */
function level({ levels }: Trial, side: number): number {
  if (done === last(steps.length, (place) => steps[place]!.at <= now))
    return levels[Math.max(1, 2 * last(levels.length / 2, (place) => levels[2 * place]! <= now) - 1)]!;
  for (let place = done - 1; place >= 0; place -= 1) {
    const { sides, seen } = steps[place]!;
    const at = sides.indexOf(side);
    if (at >= 0) return levels[Math.max(1, seen[at]! - 1)]!;
  }
  return levels[1]!;
}

function extreme(points: Float64Array, choose: (one: number, other: number) => number): number {
  let found = points[1] ?? 0;
  for (let place = 1; place < points.length; place += 2) found = choose(found, points[place]!);
  return found;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// How it starts.

function start(): void {
  const compare = document.createElement("button");
  compare.type = "button";
  compare.id = "compare";
  compare.addEventListener("click", () => {
    const second = { ...state.limits[0]!, name: `${state.limits[0]!.name}_2` };
    change({ limits: state.limits.length < 2 ? [...state.limits, second] : state.limits.slice(0, 1) });
  });
  at("limits").append(...editors.map((editor) => editor.element), compare);

  const presets = PRESETS.map((preset, place) => `<option value="${place}">${preset.title}</option>`);
  at("preset").innerHTML = `<option value="" hidden>your own</option>${presets.join("")}`;
  at("preset").addEventListener("change", () => choose(Number(at<HTMLSelectElement>("preset").value)));

  at("setup").addEventListener("submit", (event) => event.preventDefault());
  calls.addEventListener("input", () => change({ calls: calls.value }));
  for (const name of TEXTS)
    at(name).addEventListener("input", () => change({ [name]: at<HTMLInputElement>(name).value.trim() }));
  at("asking").addEventListener("change", () => change({ asking: at<HTMLSelectElement>("asking").value as Asking }));
  at("watch").addEventListener("change", () => change({ watch: at<HTMLSelectElement>("watch").value }));
  at("reserve").addEventListener("change", () => change({ reserve: at<HTMLInputElement>("reserve").checked }));
  for (const button of document.querySelectorAll<HTMLElement>("[data-add]")) {
    button.addEventListener("click", () => change({ calls: `${state.calls}\n${button.dataset["add"]}`.trim() }));
  }
  at("csv").addEventListener("change", () => void load());
  at("drop").addEventListener("click", () => {
    [csv, file] = ["", ""];
    update("end");
  });

  at("play").addEventListener("click", play);
  at("step").addEventListener("click", () => step(1));
  at("back").addEventListener("click", () => step(-1));
  at("call").addEventListener("click", callNow);
  at("forget").addEventListener("click", () => change({ clicks: [] }));
  at("cursor").addEventListener("input", () => {
    pause();
    seek((Number(at<HTMLInputElement>("cursor").value) / SPAN_STEPS) * shown.span);
  });
  at("speed").addEventListener("change", () => {
    if (playing !== undefined) playing = { since: performance.now(), from: now };
  });
  at("trials").addEventListener("pointerdown", (event) => {
    const plots = (event.target as HTMLElement).closest<HTMLElement>(".plots");
    if (plots === null) return;
    pause();
    const { left, width } = plots.getBoundingClientRect();
    seek(((event.clientX - left - LEFT) / (width - LEFT - RIGHT)) * shown.span);
  });
  document.addEventListener("keydown", key);

  const tabs = ["rust", "toml", "command"] as const;
  tabs.forEach((name, place) => {
    const choose = (chosen: number) => {
      language = tabs[chosen]!;
      tabs.forEach((tab, other) => {
        at(`tab-${tab}`).setAttribute("aria-selected", `${other === chosen}`);
        at(`tab-${tab}`).tabIndex = other === chosen ? 0 : -1;
      });
      at("text").setAttribute("aria-labelledby", `tab-${language}`);
      at(`tab-${language}`).focus();
      write();
    };
    at(`tab-${name}`).addEventListener("click", () => choose(place));
    at(`tab-${name}`).addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by !== undefined) choose((place + by + tabs.length) % tabs.length);
    });
  });
  at("copy").addEventListener("click", () => void copy(at("copy"), text()));
  at("link").addEventListener("click", () => void copy(at("link"), location.href.replace(/#.*/, "") + hashOf(good)));

  addEventListener("hashchange", () => {
    const linked = stateOf(location.hash);
    if (linked !== undefined && hashOf(linked) !== hashOf(state)) {
      forgetAddress();
      [state, csv, file] = [linked, "", ""];
      preset();
      update("end");
    }
  });
  preset();
  open();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) draw();
    width = innerWidth;
    seek(now);
  });
}

/** Shows the first scene, whole: there is no picture yet that could stand still. */
function open(): void {
  try {
    show(record(sceneOf(state, csv)), state, true);
    remember();
    fill([]);
  } catch (error) {
    if (!(error instanceof Faulty)) throw error;
    // A scene from a link may have faults: then the first example is behind them.
    const example = PRESETS[0]!.state;
    show(record(sceneOf(example, csv)), example, true);
    fill(error.faults);
  }
}

function choose(place: number): void {
  const example = PRESETS[place];
  if (example === undefined) return;
  pause();
  [csv, file] = ["", ""];
  state = structuredClone(example.state);
  preset();
  update("end");
}

/** Names the preset that this is. */
function preset(): void {
  const place = PRESETS.findIndex((preset) => hashOf(preset.state) === hashOf(state));
  at<HTMLSelectElement>("preset").value = place < 0 ? "" : `${place}`;
  at("point").textContent = PRESETS[place]?.point ?? "";
}

async function load(): Promise<void> {
  const input = at<HTMLInputElement>("csv");
  const chosen = input.files?.[0];
  if (chosen === undefined) return;
  [csv, file] = [await chosen.text(), chosen.name];
  // So that the same file can be chosen again.
  input.value = "";
  at<HTMLSelectElement>("preset").value = "";
  at("point").textContent = "";
  at("recorded").querySelector("span")!.textContent = `${file}: it stays on this machine, and no link carries it.`;
  update("end");
}

function key(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, button, [role=tab]"))
    return;
  const does = { " ": play, ArrowRight: () => step(1), ArrowLeft: () => step(-1), c: callNow, C: callNow }[event.key];
  if (does === undefined) return;
  event.preventDefault();
  does();
}

start();
