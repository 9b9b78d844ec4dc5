// What the page tries: two limits at most, on the same calls. The address of the page holds all of it.

/** The kinds of limits, as a limits file names them. */
export const KINDS = [
  "token_bucket",
  "fixed_window",
  "stepped_bucket",
  "sliding_window",
  "concurrency",
  "wallet",
] as const;
export type Kind = (typeof KINDS)[number];

/** The fields of a limit that are texts, in the order of a limits file. */
export const FIELDS = ["rate", "per", "capacity", "start", "resolution", "max_reserved", "shards"] as const;
export type Field = (typeof FIELDS)[number];

/** A limit as it is filled in. What is empty is not given. */
export type LimitForm = { name: string; kind: Kind; global: boolean } & { [field in Field]: string };

/** How calls end. */
export const ENDS = ["work", "used", "dies", "lapses_after"] as const;

/** All that a link carries. */
export interface State {
  limits: LimitForm[];
  /** A pattern a line. */
  calls: string;
  reserve: boolean;
  work: string;
  /** What a call has used when its work ends. */
  used: string;
  /** Every so many-th client dies. */
  dies: string;
  lapses_after: string;
  funds: string;
  /** What stays behind of the second limit, where the rest is lent. */
  lend: string;
  seed: number;
  /** Calls made by hand, in microseconds since the start. */
  clicks: number[];
}

/** What the core tries. */
export interface Scene {
  limits: Tried[];
  reserve: boolean;
  work: string;
  used: string;
  dies: string;
  lapses_after: string;
  funds: string;
  lend: string;
  traffic: string[];
  csv: string;
  clicks: { at: number; cost: string }[];
  seed: number;
}

/** A limit by its words in a limits file, in their order. */
export interface Tried {
  name: string;
  words: [field: string, word: string][];
  global: boolean;
}

/** The fields that a kind takes. */
export function fieldsOf(kind: Kind): readonly Field[] {
  switch (kind) {
    case "token_bucket":
      return ["rate", "per", "capacity", "max_reserved", "shards"];
    case "fixed_window":
      return ["rate", "per", "capacity", "start", "max_reserved", "shards"];
    case "stepped_bucket":
      return ["rate", "per", "capacity", "max_reserved"];
    case "sliding_window":
      return ["rate", "per", "resolution"];
    case "concurrency":
      return ["rate", "per"];
    case "wallet":
      return ["max_reserved"];
  }
}

/** What a limits file calls a field of this kind. */
export function wordFor(kind: Kind, field: Field): string {
  if (kind === "concurrency" && field === "per") return "lease";
  if (kind === "wallet" && field === "max_reserved") return "overdraft";
  return field;
}

export function limit(name: string, kind: Kind, fields: Partial<Omit<LimitForm, "name" | "kind">> = {}): LimitForm {
  const empty = { rate: "", per: "", capacity: "", start: "", resolution: "", max_reserved: "", shards: "" };
  return { name, kind, global: false, ...empty, ...fields };
}

export function triedOf(form: LimitForm): Tried {
  const given = fieldsOf(form.kind).filter((field) => form[field] !== "");
  const words = given.map((field): [string, string] => [wordFor(form.kind, field), form[field]]);
  return { name: form.name, words: [["kind", form.kind], ...words], global: form.global };
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

/** The command that tries the same. */
export function commandOf(state: State): string {
  const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
  const options = state.limits.map((form) => {
    const table = `${nameOf(form)} = { ${entries(form).join(", ")} }`;
    return `${form.global ? "--global" : "--limit"} ${quoted(table)}`;
  });
  if (state.limits.length > 1) options.unshift("--compare");
  options.push(...patterns(state).map((pattern) => `--traffic ${quoted(pattern)}`));
  if (isLent(state)) options.push(`--lend-above ${quoted(state.lend)}`);
  if (state.reserve) options.push("--reserve");
  for (const name of ENDS) if (state[name]) options.push(`--${name.replace("_", "-")} ${quoted(state[name])}`);
  if (state.seed !== 1) options.push(`--seed ${state.seed}`);
  return `tollgate simulate ${options.join(" \\\n    ")}`;
}

/** Whether the second trial is of both limits. */
export function isLent(state: State): boolean {
  return state.lend !== "" && state.limits.length > 1;
}

export function patterns(state: State): string[] {
  return state.calls.split("\n").map((line) => line.trim()).filter((line) => line !== "");
}

export function sceneOf(state: State, csv: string): Scene {
  const { reserve, work, used, dies, lapses_after, funds, lend, seed } = state;
  const limits = state.limits.map(triedOf);
  const clicks = state.clicks.map((at) => ({ at, cost: "" }));
  return { limits, reserve, work, used, dies, lapses_after, funds, lend, seed, traffic: patterns(state), csv, clicks };
}

/** A state as the hash of an address. */
export function hashOf(state: State): string {
  const words = new URLSearchParams();
  for (const form of state.limits) {
    const fields = fieldsOf(form.kind).filter((field) => form[field] !== "");
    const values = fields.map((field) => `${field}=${form[field].replaceAll(/\s/g, "")}`);
    words.append("limit", [form.kind, `name=${form.name.replaceAll(/\s/g, "_")}`, ...values, form.global ? "global" : ""].join(" ").trim());
  }
  for (const pattern of patterns(state)) words.append("calls", pattern);
  if (state.reserve) words.set("reserve", "");
  for (const name of ENDS) if (state[name]) words.set(name, state[name]);
  if (state.funds) words.set("funds", state.funds);
  if (state.lend) words.set("lend", state.lend);
  if (state.seed !== 1) words.set("seed", `${state.seed}`);
  if (state.clicks.length > 0) words.set("clicks", state.clicks.join(","));
  return `#${words}`;
}

/** The state of a hash; `undefined` if it holds none. What it does not know it leaves out. */
export function stateOf(hash: string): State | undefined {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const limits = words.getAll("limit").slice(0, 2).map((text, place) => limitOf(text, place));
  if (limits.length === 0) return undefined;
  const whole = (text: string | null) => (text !== null && /^\d{1,15}$/.test(text) ? Number(text) : undefined);
  const clicks = (words.get("clicks") ?? "").split(",").map(whole).filter((at) => at !== undefined);
  return {
    limits,
    calls: words.getAll("calls").join("\n"),
    reserve: words.has("reserve"),
    work: words.get("work") ?? "",
    used: words.get("used") ?? "",
    dies: words.get("dies") ?? "",
    lapses_after: words.get("lapses_after") ?? "",
    funds: words.get("funds") ?? "",
    lend: words.get("lend") ?? "",
    seed: whole(words.get("seed")) ?? 1,
    clicks,
  };
}

function limitOf(text: string, place: number): LimitForm {
  const [kind, ...words] = text.split(/\s+/);
  const form = limit(place === 0 ? "a" : "b", KINDS.find((known) => known === kind) ?? "token_bucket");
  for (const word of words) {
    const [name = "", value = ""] = word.split(/=(.*)/s);
    const field = FIELDS.find((known) => known === name);
    if (field !== undefined) form[field] = value;
    if (name === "name" && value !== "") form.name = value;
    if (name === "global") form.global = true;
  }
  return form;
}
