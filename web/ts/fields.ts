// What the header fields of a response say of limits and waits, in seconds. Of several readings the latest "go" counts.
import { parseList } from "structured-headers";

/** The header fields of a response, as `fetch` has them. */
export interface Fields {
  get(name: string): string | null;
}

/** One limit, as a response tells of it. */
export interface ToldLimit {
  /** Whole tokens that are left. */
  readonly left: number;
  /** Seconds until there is one more. */
  readonly more: number | undefined;
  /** What it holds when it is full, and in how many seconds so many come back. */
  readonly quota: number | undefined;
  readonly window: number | undefined;
}

/** What is told of limits. */
export interface ToldLimits {
  readonly limits: readonly ToldLimit[];
  /** Whether each limit of which there is a policy is among them. */
  readonly isComplete: boolean;
}

/** The limits that header fields tell of: those of the draft, or the older ones. `today` is in seconds since 1970. */
export function limitsOf(fields: Fields, today: number): ToldLimits {
  const drafted = draftedOf(fields);
  return drafted.limits.length > 0 ? drafted : { limits: olderOf(fields, today), isComplete: false };
}

/** A wait of so many seconds; it is not exact if the client's own clock had to say how far an instant is. */
export interface ToldWait {
  readonly seconds: number;
  readonly isExact: boolean;
}

/** What `Retry-After` says. Of several that were joined the longest counts, and nothing if one of them is wrong. */
export function retryAfterOf(fields: Fields, today: number): ToldWait | undefined {
  const field = fields.get("retry-after")?.trim() ?? "";
  if (!WAITS.test(field)) return undefined;
  const date = dateOf(fields, today);
  const waits = [...field.matchAll(WAIT)].map(([wait]) => {
    if (/^\d/.test(wait)) return { seconds: Number(wait), isExact: true };
    const until = instantOf(wait, today) ?? NaN;
    return { seconds: Math.max(0, until - (date ?? today)), isExact: date !== undefined };
  });
  const seconds = Math.min(LONGEST, Math.max(...waits.map((wait) => wait.seconds)));
  return Number.isNaN(seconds) ? undefined : { seconds, isExact: waits.every((wait) => wait.isExact) };
}

/** Structured fields (RFC 9651). A field that is not right as a whole is ignored as a whole. */
function draftedOf(fields: Fields): ToldLimits {
  const policies = itemsOf(fields.get("ratelimit-policy"));
  const told = itemsOf(fields.get("ratelimit")).filter(({ number }) => number("r") !== undefined);
  const limits = told.map(({ name, number }): ToldLimit => {
    const named = policies.filter((policy) => policy.name === name);
    // Of two policies of one name nobody knows which is meant.
    const policy = named.length === 1 ? named[0]!.number : () => undefined;
    return { left: Math.floor(number("r")!), more: number("t"), quota: down(policy("q")), window: policy("w") };
  });
  const names = new Set(told.map(({ name }) => name));
  return { limits, isComplete: policies.length > 0 && policies.every(({ name }) => names.has(name)) };
}

interface NamedItem {
  readonly name: string;
  /** The parameter of this key, if it is a number; nothing is less than none. */
  number(key: string): number | undefined;
}

/** The members of a list that are names with parameters. */
function itemsOf(field: string | null): NamedItem[] {
  const items: NamedItem[] = [];
  for (const [item, parameters] of listOf(field)) {
    if (Array.isArray(item) || typeof item === "number" || typeof item === "boolean") continue;
    const number = (key: string) => {
      const value = parameters.get(key);
      return typeof value === "number" ? Math.max(0, value) : undefined;
    };
    items.push({ name: String(item), number });
  }
  return items;
}

function listOf(field: string | null): ReturnType<typeof parseList> {
  try {
    return parseList(field ?? "");
  } catch {
    return [];
  }
}

/**
 * The fields of older drafts, and those before them. They are written in many ways, so they are read leniently: the
 * least that is left, and the latest reset.
 */
function olderOf(fields: Fields, today: number): ToldLimit[] {
  const joined = fields.get("ratelimit") ?? "";
  // Within quotes stands what somebody chose, not a member.
  const members = joined.includes('"') ? [] : [...joined.matchAll(/([a-z]+)\s*=\s*([^,;]*)/g)];
  const member = (name: string) => members.filter(([, key]) => key === name).map(([, , value]) => value).join();
  const forms: ((name: string) => string | null)[] = [
    member,
    (name) => fields.get(`ratelimit-${name}`),
    (name) => fields.get(`x-ratelimit-${name}`),
  ];
  return forms.flatMap((form) => {
    const [left, resets, quotas] = [numbers(form("remaining")), numbers(form("reset")), numbers(form("limit"))];
    if (left.length === 0) return [];
    const more = resets.length === 0 ? undefined : spanOf(Math.max(...resets), fields, today);
    const quota = quotas.length === 0 ? undefined : Math.min(...quotas);
    return [{ left: Math.floor(Math.min(...left)), more, quota: down(quota), window: undefined }];
  });
}

/** All numbers of a field, which may be several that were joined; none if something else is among them. */
function numbers(field: string | null): number[] {
  const members = (field ?? "").split(",").map((member) => member.replace(/;.*/, "").trim());
  if (!members.every((member) => /^-?\d+(\.\d+)?$/.test(member))) return [];
  return members.map((member) => Math.max(0, Number(member)));
}

/** Seconds until a reset, which may be an instant. */
function spanOf(reset: number, fields: Fields, today: number): number {
  // No span is thirty years long, and no clock of a server stands before 2001.
  return reset < 1e9 ? reset : Math.min(LONGEST, Math.max(0, reset - (dateOf(fields, today) ?? today)));
}

/** The instant of the response, in seconds since 1970, unless it is hidden from scripts. */
function dateOf(fields: Fields, today: number): number | undefined {
  return instantOf(fields.get("date")?.trim() ?? "", today);
}

/** The instant of an HTTP-date, which has three forms (RFC 9110, section 5.6.7), in seconds since 1970. */
function instantOf(date: string, today: number): number | undefined {
  const { groups } = DATES.map((form) => form.exec(date)).find((found) => found !== null) ?? {};
  if (groups === undefined) return undefined;
  const [day, hour] = [Number(groups.day), Number(groups.hour)];
  const [minute, second] = [Number(groups.minute), Number(groups.second)];
  const month = MONTHS.indexOf(groups.month!);
  const year = groups.year!.length === 4 ? Number(groups.year) : yearOf(Number(groups.year), today);
  const midnight = new Date(Date.UTC(year, month, day));
  // A minute may have a leap second.
  const isRight = midnight.getUTCMonth() === month && hour < 24 && minute < 60 && second <= 60;
  return isRight ? midnight.getTime() / 1000 + hour * 3600 + minute * 60 + second : undefined;
}

/** A year of two digits that seems to be more than fifty years ahead is one of the past. */
function yearOf(digits: number, today: number): number {
  const current = new Date(today * 1000).getUTCFullYear();
  const year = current - (current % 100) + digits;
  return year > current + 50 ? year - 100 : year;
}

function down(number: number | undefined): number | undefined {
  return number === undefined ? undefined : Math.floor(number);
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const [SHORT, LONG, MONTH, TIME] = [
  "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)",
  "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day",
  `(?<month>${MONTHS.join("|")})`,
  "(?<hour>\\d\\d):(?<minute>\\d\\d):(?<second>\\d\\d)",
];
const FORMS = [
  `${SHORT}, (?<day>\\d\\d) ${MONTH} (?<year>\\d{4}) ${TIME} GMT`,
  `${LONG}, (?<day>\\d\\d)-${MONTH}-(?<year>\\d\\d) ${TIME} GMT`,
  `${SHORT} ${MONTH} (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})`,
];
const DATES = FORMS.map((form) => new RegExp(`^${form}$`));
const ONE_WAIT = ["\\d+", ...FORMS.map((form) => form.replaceAll(/\?<\w+>/g, "?:"))].join("|");
const WAIT = new RegExp(ONE_WAIT, "g");
const WAITS = new RegExp(`^(?:${ONE_WAIT})(?:\\s*,\\s*(?:${ONE_WAIT}))*$`);
/** A thousand years: a wait of more digits is still a number of milliseconds. */
const LONGEST = 1000 * 366 * 86_400;
