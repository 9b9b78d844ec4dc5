// The page's experiment: two limits at most, on the same calls. The address of the page holds all of it but recorded
// calls.

/**
 * The kinds of limits that the page offers, as a limits file names them. Three are not among them: no month turns, and
 * no period that a customer names, in the minutes that the page shows, and a meter refuses nobody.
 */
export const KINDS = [
  "token_bucket",
  "fixed_window",
  "stepped_bucket",
  "sliding_window",
  "concurrency",
  "wallet",
] as const;
export type Kind = (typeof KINDS)[number];

/**
 * The fields of a limit that are texts: those of a limits file in its order, and the time in which the rate would grow
 * back, if it follows the service.
 */
export const FIELDS = ["rate", "per", "capacity", "start", "resolution", "max_reserved", "shards", "follows"] as const;
export type Field = (typeof FIELDS)[number];

/** A limit as it is filled in. What is empty is not given. A link may name a kind that there is not. */
export type LimitForm = { name: string; kind: Kind | (string & {}); global: boolean } & { [field in Field]: string };

/** How calls end, what wallets hold, the service that they go on to, and what random traffic begins with. */
export const WORDS = ["work", "used", "dies", "lapses_after", "funds", "service", "seed"] as const;

/** How the second limit is asked: by itself, where the first refuses, or with it, where the rest is lent. */
export type Asking = "alone" | "in_turn" | "lend";

/** All that a link carries. */
export type State = { [word in (typeof WORDS)[number]]: string } & {
  limits: LimitForm[];
  asking: Asking;
  /** What stays behind of the second limit, where the rest is lent. */
  lend: string;
  /** A pattern a line. */
  calls: string;
  reserve: boolean;
  /** Whose balance is shown; the first caller's, if nobody is called so. */
  watch: string;
  /** Calls made by hand, in microseconds since the start. */
  clicks: number[];
};

/** What the core tries. */
export interface Scene {
  limits: Tried[];
  reserve?: boolean;
  work?: string;
  used?: string;
  dies?: string;
  lapses_after?: string;
  funds?: string;
  service?: string;
  lend?: string;
  in_turn?: boolean;
  traffic?: string[];
  csv?: string;
  click?: number[];
  seed?: string;
  watch?: string;
}

/** A limit by its words in a limits file, in their order, and how it follows the service. */
export interface Tried {
  name: string;
  words: [field: string, word: string][];
  global: boolean;
  follows?: string;
}

/** The fields that a kind takes. */
export function fieldsOf(kind: string): readonly Field[] {
  switch (kind) {
    case "fixed_window":
      return ["rate", "per", "capacity", "start", "max_reserved", "shards", "follows"];
    case "stepped_bucket":
      return ["rate", "per", "capacity", "max_reserved", "follows"];
    case "sliding_window":
      return ["rate", "per", "resolution", "follows"];
    case "concurrency":
      return ["rate", "per"];
    case "wallet":
      return ["max_reserved"];
    default:
      return ["rate", "per", "capacity", "max_reserved", "shards", "follows"];
  }
}

/** What a limits file calls a field of this kind. */
export function wordFor(kind: string, field: Field): string {
  if (kind === "concurrency" && field === "per") return "lease";
  if (kind === "wallet" && field === "max_reserved") return "overdraft";
  return field;
}

export function limit(name: string, kind: string, fields: Partial<Omit<LimitForm, "name" | "kind">> = {}): LimitForm {
  const empty = { rate: "", per: "", capacity: "", start: "", resolution: "", max_reserved: "", shards: "", follows: "" };
  return { name, kind, global: false, ...empty, ...fields };
}

export function triedOf(form: LimitForm): Tried {
  const taken = fieldsOf(form.kind);
  const given = taken.filter((field) => field !== "follows" && form[field] !== "");
  const words = given.map((field): [string, string] => [wordFor(form.kind, field), form[field]]);
  const follows = taken.includes("follows") ? form.follows : "";
  return { name: form.name, words: [["kind", form.kind], ...words], global: form.global, follows };
}

/** The entries of a limit, as a limits file has them. */
function entries(form: LimitForm): string[] {
  return triedOf(form).words.map(([field, word]) => `${field} = ${written(field, word)}`);
}

function written(field: string, value: string): string {
  const isSpan = ["per", "lease", "start"].includes(field);
  return !isSpan && /^-?(0|[1-9]\d*)(\.\d+)?$/.test(value) ? value : JSON.stringify(value);
}

function nameOf(form: LimitForm): string {
  return /^[\w-]+$/.test(form.name) ? form.name : JSON.stringify(form.name);
}

/** A limit as a limits file has it: one field a line. */
export function tomlOf(form: LimitForm): string {
  return [`[${nameOf(form)}]`, ...entries(form)].join("\n");
}

/**
 * The command that tries the same: on the calls of a file, if it has a name, and on those by hand of this caller. It
 * says in which ways the command differs. For a file there is the search for numbers as well.
 */
export function commandOf(state: State, file: string, caller: string): string {
  const options = state.limits.map((form) => {
    const table = `${nameOf(form)} = { ${entries(form).join(", ")} }`;
    return `${form.global ? "--global" : "--limit"} ${quoted(table)}`;
  });
  if (state.limits.length > 1) options.unshift("--compare");
  const traffic =
    file === ""
      ? [...patterns(state), ...byHand(state, caller)].map((pattern) => `--traffic ${quoted(pattern)}`)
      : [`--trace ${quoted(file)}`];
  options.push(...traffic);
  const asking = askingOf(state);
  if (asking === "lend") options.push(`--lend-above ${quoted(state.lend || "0")}`);
  if (asking === "in_turn") options.push("--in-turn");
  if (state.reserve) options.push("--reserve");
  const known = WORDS.filter((name) => name !== "service" && state[name] !== "");
  for (const name of known) options.push(`--${name.replace("_", "-")} ${quoted(state[name])}`);
  const lacks: string[] = [];
  if (state.service !== "") lacks.push("# Without the service, so nothing fails and no limit follows it.\n");
  if (file !== "" && state.clicks.length > 0)
    lacks.push("# Without the calls made by hand: a trace takes no others.\n");
  if (asking === "in_turn" && state.limits[0]!.global && !state.limits[1]!.global)
    lacks.push("# It asks B first: limits for each key come before those that are shared.\n");
  return `${lacks.join("")}tollgate simulate ${options.join(" \\\n    ")}${file === "" ? "" : suggestOf(state, quoted(file))}`;
}

/** The commands that search numbers for recorded calls, as the page does. */
function suggestOf({ limits }: State, file: string): string {
  const searched = limits.filter(({ kind }) => ["token_bucket", "fixed_window", "sliding_window"].includes(kind));
  const lines = searched.map(
    ({ kind, per, global }) =>
      `tollgate suggest --trace ${file} --kind ${kind} --per ${quoted(per)}${global ? " --global" : ""}`,
  );
  if (lines.length === 0) return "";
  return `\n\n# Which numbers refuse at most 0.1 % of these calls:\n${[...new Set(lines)].join("\n")}`;
}

/** A text as one word of a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** How the second limit is asked, if there is one. */
export function askingOf(state: State): Asking {
  return state.limits.length > 1 ? state.asking : "alone";
}

export function patterns(state: State): string[] {
  return state.calls
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** Calls made by hand as patterns, one for each instant. */
function byHand({ clicks }: State, caller: string): string[] {
  return [...new Set(clicks)].map(
    (at) => `burst size=${clicks.filter((click) => click === at).length} every=1s for=1us from=${at}us key=${caller}`,
  );
}

export function sceneOf(state: State, csv: string): Scene {
  const { reserve, work, used, dies, lapses_after, funds, service, seed, watch, clicks: click } = state;
  const asking = askingOf(state);
  const lend = asking === "lend" ? state.lend || "0" : "";
  const limits = state.limits.map(triedOf);
  return {
    limits,
    reserve,
    work,
    used,
    dies,
    lapses_after,
    funds,
    service,
    lend,
    in_turn: asking === "in_turn",
    seed,
    watch,
    traffic: patterns(state),
    csv,
    click,
  };
}

/** A state as the hash of an address. */
export function hashOf(state: State): string {
  const words = new URLSearchParams();
  for (const form of state.limits) {
    const fields = fieldsOf(form.kind).filter((field) => form[field] !== "");
    const values = fields.map((field) => `${field}=${form[field].replaceAll(/\s/g, "")}`);
    words.append("limit", [form.kind, ...values, form.global ? "global" : ""].join(" ").trim());
    words.append("name", form.name);
  }
  const asking = askingOf(state);
  if (asking === "lend") words.set("lend", state.lend);
  if (asking === "in_turn") words.set("in_turn", "");
  for (const pattern of patterns(state)) words.append("calls", pattern);
  if (state.reserve) words.set("reserve", "");
  for (const name of WORDS) if (state[name]) words.set(name, state[name]);
  if (state.watch) words.set("watch", state.watch);
  if (state.clicks.length > 0) words.set("clicks", state.clicks.join(","));
  return `#${words}`;
}

/** The state of a hash; `undefined` if it holds none. What it does not know it leaves out, but for kinds. */
export function stateOf(hash: string): State | undefined {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const names = words.getAll("name");
  const limits = words
    .getAll("limit")
    .slice(0, 2)
    .map((text, place) => limitOf(text, names[place] ?? (place === 0 ? "a" : "b")));
  if (limits.length === 0) return undefined;
  const word = (name: string) => words.get(name) ?? "";
  const clicks = word("clicks")
    .split(",")
    .filter((text) => /^\d{1,15}$/.test(text))
    .map(Number);
  return {
    limits,
    asking: words.has("lend") ? "lend" : words.has("in_turn") ? "in_turn" : "alone",
    lend: word("lend"),
    calls: words.getAll("calls").join("\n"),
    reserve: words.has("reserve"),
    work: word("work"),
    used: word("used"),
    dies: word("dies"),
    lapses_after: word("lapses_after"),
    funds: word("funds"),
    service: word("service"),
    seed: word("seed"),
    watch: word("watch"),
    clicks,
  };
}

function limitOf(text: string, name: string): LimitForm {
  const [kind = "", ...words] = text.split(/\s+/);
  const form = limit(name, kind);
  for (const word of words) {
    const [name, value = ""] = word.split(/=(.*)/s);
    const field = FIELDS.find((known) => known === name);
    if (field !== undefined) form[field] = value;
    if (name === "global") form.global = true;
  }
  return form;
}
