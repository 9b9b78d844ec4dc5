// The page: what is filled in becomes a scene, the core records it, and a cursor plays the record.
import { Answer, type Fault, Faulty, type Record, type Slices, type Trial, record, recorded, rust } from "./core";
import { complain, limitEditor, put } from "./form";
import { LEFT, RIGHT, bars, busiest, instantText, line, spanText, tokensText } from "./plot";
import { PRESETS } from "./presets";
import { ENDS, type LimitForm, type State, commandOf, hashOf, isLent, sceneOf, stateOf, tomlOf, triedOf } from "./scene";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const WORDS = [...ENDS, "funds", "lend"] as const;
const inputs = { calls: at<HTMLTextAreaElement>("calls"), ...Object.fromEntries(WORDS.map((word) => [word, at<HTMLInputElement>(word)])) as { [word in (typeof WORDS)[number]]: HTMLInputElement } };
const SIDES = ["A", "B"] as const;
/** Rows of the table of calls. */
const ROWS = 8;
/** How long the whole scene plays, in milliseconds. */
const WHOLE = 12_000;
/** How long the page records in a frame, in milliseconds: the rest of it is for drawing, and for whoever types. */
const BUDGET = 8;
const SPAN_STEPS = 1000;

let state: State = stateOf(location.hash) ?? structuredClone(PRESETS[0]!.state);
let csv = "";
let shown: Record;
/** The scene that `shown` is the record of: the last one without faults. */
let good: State = state;
/** What is being recorded, if something is, and the newest scene: it is next, if it is another. */
let pending: Slices | undefined;
let newest: Slices | undefined;
/** Whether the cursor goes to the end of what is shown next. */
let toEnd = false;
/** Grants and refusals of each trial before each call. */
let sums: Uint32Array[] = [];
let now = 0;
let playing: { since: number; from: number } | undefined;
let language: "rust" | "toml" | "command" = "rust";

const editors = SIDES.map((side, place) =>
  limitEditor(`limit-${side.toLowerCase()}`, `Limit ${side}`, (form) => change({ limits: state.limits.with(place, form) })),
);

// What is filled in.

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
    // What is being recorded is shown first: the picture follows a slider, if from afar.
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
    history.replaceState(null, "", hashOf(own));
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
  sums = record.trials.map(sumsOf);
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
  if (inputs.calls !== document.activeElement) put(inputs.calls, state.calls);
  complain(inputs.calls, at("calls-fault"), told("traffic"));
  at("lending").hidden = !(state.limits[1]?.global ?? false) && state.lend === "";
  for (const name of WORDS) {
    put(inputs[name], state[name]);
    complain(inputs[name], at(`${name}-fault`), told(name));
  }
  complain(null, at("csv-fault"), told("csv"));
  complain(null, at("scene-fault"), told("scene") ?? told("clicks"));
  put(at<HTMLInputElement>("seed"), `${state.seed}`);
  at<HTMLInputElement>("reserve").checked = state.reserve;
  at<HTMLButtonElement>("forget").disabled = state.clicks.length === 0;
  at("recorded").hidden = csv === "";
  inputs.calls.disabled = csv !== "";
}

// What is seen.

function draw(): void {
  const place = at("trials");
  place.dataset["count"] = `${good.limits.length}`;
  if (place.childElementCount !== good.limits.length) place.innerHTML = good.limits.map((_, side) => panel(side)).join("");
  const width = Math.max(260, Math.floor(place.querySelector<HTMLElement>(".plots")!.clientWidth));
  const lows = shown.trials.map((trial) => extreme(trial.levels, Math.min));
  const highs = shown.trials.map((trial) => extreme(trial.levels, Math.max));
  // Both are drawn on the same axes, so that they compare.
  const low = Math.min(0, ...lows);
  const high = Math.max(low + 1e6, ...highs);
  const frame = { width, height: 120, span: shown.span, labelled: false };
  const least = Math.min(0, ...shown.trials.map((trial) => extreme(trial.used, Math.min)));
  const highest = Math.max(1e6, ...shown.trials.map((trial) => trial.bound));
  const most = busiest(frame, shown.instants);
  shown.trials.forEach((trial, side) => {
    const form = good.limits[side]!;
    const part = (name: string) => place.children[side]!.querySelector<HTMLElement>(`.${name}`)!;
    const lent = side === 1 && isLent(good);
    part("name").textContent = lent ? `${good.limits[0]!.name} and ${form.name}` : form.name;
    part("kind").textContent = lent ? `lent above ${good.lend}` : form.kind.replace("_", " ");
    part("callers").textContent = callers(trial);
    part("balance").innerHTML = line(frame, trial.levels, low, high, { tone: "tokens" });
    part("answers").innerHTML = bars({ ...frame, height: 90 }, shown.instants, trial.answers, most);
    const caller = form.global ? "all callers" : shown.keys[0] || "all callers";
    part("balance-title").textContent = `balance of ${caller}, in tokens`;
    part("bound-title").innerHTML = `${escaped(used(form, caller))}: <span class="told">never above ${tokensText(trial.bound)}</span>`;
    const bounded = { tone: "used", bound: trial.bound };
    part("used").innerHTML = line({ ...frame, labelled: true }, trial.used, least, highest, bounded);
    part("sum").textContent = summary(form, trial);
  });
  at("heads").innerHTML = `<tr><th scope="col">at</th><th scope="col">caller</th><th scope="col">cost</th>${good.limits.map((form) => `<th scope="col">${escaped(form.name)}</th>`).join("")}</tr>`;
  write();
}

function panel(side: number): string {
  return `<article class="trial" aria-labelledby="name-${side}"><h2><span class="side">${SIDES[side]}</span> <span class="name" id="name-${side}"></span> <span class="kind"></span></h2>
    <dl><div><dt>granted</dt><dd class="granted"></dd></div><div><dt>refused</dt><dd class="refused"></dd></div><div><dt>balance</dt><dd class="left"></dd></div></dl>
    <p class="callers"></p><p class="sum hidden"></p>
    <div class="plots" data-plots><h3 class="balance-title"></h3><div class="balance"></div>
    <h3>calls: <span class="granted">granted</span>, and on top <span class="refused">refused</span></h3><div class="answers"></div>
    <h3 class="bound-title"></h3><div class="used"></div><div class="later"></div></div></article>`;
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
  const got = new Map<string, [granted: number, calls: number]>();
  // Keys are few and calls are many, so what costs time is done once a key.
  const names = new Map<string, string>();
  shown.keys.forEach((key, call) => {
    const name = names.get(key) ?? (key.replace(/-\d+$/, "") || "all callers");
    names.set(key, name);
    const [granted, calls] = got.get(name) ?? [0, 0];
    got.set(name, [granted + (trial.answers[call] === Answer.Granted ? 1 : 0), calls + 1]);
  });
  return `granted in all: ${[...got].map(([name, [granted, calls]]) => `${name} ${granted} of ${calls}`).join(", ")}`;
}

function summary(form: LimitForm, { figures }: Trial): string {
  const worst = figures.longest > 0 ? ` The longest wait told was ${spanText(figures.longest)}.` : "";
  return `${form.name}: of ${figures.calls} calls ${figures.granted} are granted and ${figures.refused} refused.${worst}`;
}

/** Moves the cursor, and tells what is there. */
function seek(to: number): void {
  now = Math.max(0, Math.min(to, shown.span));
  const calls = callsBy(now);
  at<HTMLInputElement>("cursor").value = `${Math.round((now / shown.span) * SPAN_STEPS)}`;
  at("clock").textContent = instantText(now, shown.span);
  shown.trials.forEach((trial, side) => {
    const element = at("trials").children[side] as HTMLElement;
    element.style.setProperty("--now", `${now / shown.span}`);
    const tell = (name: string, text: string) => {
      element.querySelector(`dd.${name}`)!.textContent = text;
    };
    const granted = sums[side]![calls]!;
    tell("granted", `${granted}`);
    tell("refused", `${calls - granted}`);
    tell("left", tokensText(levelAt(trial.levels, now)));
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
  const [wait, left] = [trial.waits[call]!, tokensText(trial.balances[call]!)];
  switch (trial.answers[call] as Answer) {
    case Answer.Granted:
      return wait > 0 ? ["granted", `granted, ready in ${spanText(wait)}`] : ["granted", `granted, ${left} left`];
    case Answer.Refused:
      return ["refused", wait < 0 ? "refused, no wait helps" : `refused, try in ${spanText(wait)}`];
    case Answer.Impossible:
      return ["refused", "an error: more than it can ever grant"];
  }
}

// What moves.

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

/** Goes one call on, or one back. */
function step(by: 1 | -1): void {
  pause();
  const calls = callsBy(now);
  const call = by > 0 ? calls : callsBefore(shown.instants[calls - 1] ?? 0) - 1;
  seek(call < 0 ? 0 : (shown.instants[call] ?? shown.span));
  const last = callsBy(now) - 1;
  if (last < 0) return say("before the first call");
  const answers = shown.trials.map((trial, side) => `${good.limits[side]!.name}: ${answerOf(trial, last)[1]}`);
  say(`${instantText(now, shown.span)}, ${shown.keys[last]}: ${answers.join("; ")}`);
}

function say(text: string): void {
  at("said").textContent = text;
}

async function callNow(): Promise<void> {
  const instant = Math.floor(now);
  const clicks = [...state.clicks, instant].sort((one, other) => one - other);
  const isShown = await change({ clicks });
  const trial = shown.trials[0];
  if (isShown && trial !== undefined) say(`your call: ${answerOf(trial, callsBy(instant) - 1)[1]}`);
}

// What is taken away.

function write(): void {
  at("text").textContent = text();
}

function text(): string {
  switch (language) {
    case "rust": {
      const constants = good.limits.map((form) => rust(triedOf(form)));
      const used = ["DAY", "HOUR", "MINUTE", "SECOND", "Tokens"].filter((word) => constants.some((one) => one.includes(word)));
      const [own, shared] = constants.map((one) => /const (\w+)/.exec(one)![1]);
      const lent = isLent(good)
        ? `\n\n// consume_all(first_of([vec![${own}.key(caller), ${shared}.global()], vec![${shared}.global().leaving(${good.lend})]]))`
        : "";
      const duration = constants.some((one) => one.includes("Duration")) ? "use std::time::Duration;\n" : "";
      const names = ["Limit", ...used].sort();
      return `${duration}use tollgate::${names.length > 1 ? `{${names.join(", ")}}` : "Limit"};\n\n${constants.join("\n")}${lent}`;
    }
    case "toml":
      return good.limits.map(tomlOf).join("\n\n");
    case "command":
      return commandOf(good);
  }
}

async function copy(button: HTMLElement, copied: string): Promise<void> {
  const word = button.textContent ?? "";
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

/** How many calls are made by an instant. */
function callsBy(instant: number): number {
  return callsBefore(instant + 0.5);
}

function callsBefore(instant: number): number {
  let [low, high] = [0, shown.instants.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (shown.instants[middle]! < instant) low = middle + 1;
    else high = middle;
  }
  return low;
}

function sumsOf(trial: Trial): Uint32Array {
  const sums = new Uint32Array(trial.answers.length + 1);
  trial.answers.forEach((answer, call) => (sums[call + 1] = sums[call]! + (answer === Answer.Granted ? 1 : 0)));
  return sums;
}

/** The last balance that was noted by an instant. */
function levelAt(levels: Float64Array, instant: number): number {
  let [low, high] = [0, levels.length / 2];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (levels[2 * middle]! <= instant) low = middle + 1;
    else high = middle;
  }
  return levels[Math.max(0, 2 * low - 1)]!;
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
  inputs.calls.addEventListener("input", () => change({ calls: inputs.calls.value }));
  for (const name of WORDS) inputs[name].addEventListener("input", () => change({ [name]: inputs[name].value.trim() }));
  at("seed").addEventListener("input", () => {
    const seed = at<HTMLInputElement>("seed").valueAsNumber;
    if (Number.isSafeInteger(seed) && seed >= 0) change({ seed });
  });
  at("reserve").addEventListener("change", () => change({ reserve: at<HTMLInputElement>("reserve").checked }));
  for (const button of document.querySelectorAll<HTMLElement>("[data-add]")) {
    button.addEventListener("click", () => change({ calls: `${state.calls}\n${button.dataset["add"]}`.trim() }));
  }
  at("csv").addEventListener("change", () => void load());
  at("drop").addEventListener("click", () => {
    csv = "";
    at<HTMLInputElement>("csv").value = "";
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
  at("link").addEventListener("click", () => void copy(at("link"), location.href));

  addEventListener("hashchange", () => {
    const linked = stateOf(location.hash);
    if (linked !== undefined && hashOf(linked) !== hashOf(state)) {
      state = linked;
      named();
      update("end");
    }
  });
  named();
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
    history.replaceState(null, "", hashOf(state));
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
  const preset = PRESETS[place];
  if (preset === undefined) return;
  pause();
  csv = "";
  state = structuredClone(preset.state);
  named();
  update("end");
}

/** Names the preset that this is. */
function named(): void {
  const place = PRESETS.findIndex((preset) => hashOf(preset.state) === hashOf(state));
  at<HTMLSelectElement>("preset").value = place < 0 ? "" : `${place}`;
  at("point").textContent = PRESETS[place]?.point ?? "";
}

async function load(): Promise<void> {
  const file = at<HTMLInputElement>("csv").files?.[0];
  if (file === undefined) return;
  csv = await file.text();
  at("recorded").querySelector("span")!.textContent = `${file.name}: it stays on this machine, and no link carries it.`;
  update("end");
}

function key(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, button, [role=tab]")) return;
  const does = { " ": play, ArrowRight: () => step(1), ArrowLeft: () => step(-1), c: callNow, C: callNow }[event.key];
  if (does === undefined) return;
  event.preventDefault();
  does();
}

start();
