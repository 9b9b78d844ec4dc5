// Reads limits and waits from the header fields of a response, in seconds. If a field can be read in several ways, the
// one with the latest "go" counts. The library reads the same (`http/src/told.rs`), by the cases of `troubles.json`.
import { parseList } from "structured-headers";
import { clocksOf, spanOf, spanOfNumber, YEAR, type Clocks, type Span } from "./spans.js";

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
  const clocks = clocksOf(fields.get("date"), today);
  const drafted = draftedOf(fields, clocks);
  return drafted.limits.length > 0 ? drafted : { limits: olderOf(fields, clocks), isComplete: false };
}

/** What `Retry-After` says. */
export function retryAfterOf(fields: Fields, today: number): Span | undefined {
  return spanOf(fields.get("retry-after") ?? "", clocksOf(fields.get("date"), today));
}

/** Whether a response refuses its call: by 429, with `Retry-After`, or by a 403 of GitHub's as nothing is left. */
export function isRefusal(status: number, fields: Fields): boolean {
  if (status === 403 && limitsOf(fields, 0).limits.some(({ left }) => left === 0)) return true;
  return status === 429 || (status >= 400 && status < 500 && (fields.get("retry-after") ?? "") !== "");
}

/**
 * Whether a cache gave the response, so that the server has not answered this call. Caches write `Age: 0` also where
 * they asked the server.
 */
export function isStored(fields: Fields): boolean {
  const isHit = ["cache-status", "x-cache", "cf-cache-status"].some((name) => HIT.test(fields.get(name) ?? ""));
  return isHit || /[^0\s,]/.test(fields.get("age") ?? "");
}

/** Structured fields (RFC 9651). A field that is not right as a whole is ignored as a whole. */
function draftedOf(fields: Fields, clocks: Clocks): ToldLimits {
  const policies = itemsOf(fields.get("ratelimit-policy"));
  const told = itemsOf(fields.get("ratelimit")).flatMap((item) => {
    const named = policies.filter((policy) => policy.name === item.name);
    // If two policies have the name, nothing says which of them the limit has.
    const limit = draftedLimit(item, named.length === 1 ? named[0] : undefined, clocks);
    return limit === undefined ? [] : [{ name: item.name, limit }];
  });
  const names = new Set(told.map(({ name }) => name));
  const isComplete = policies.length > 0 && policies.every(({ name }) => names.has(name));
  return { limits: told.map(({ limit }) => limit), isComplete };
}

function draftedLimit(item: NamedItem, policy: NamedItem | undefined, clocks: Clocks): ToldLimit | undefined {
  const [left, more] = [leftOf([item.number("r")]), item.number("t")];
  const [quotas, window] = [[policy?.number("q")], policy?.number("w")];
  // A wallet has no quota, and no window either. Any other limit without a quota holds no whole token to tell of.
  if (left === undefined || (isNothing(left, quotas) && window !== undefined)) return undefined;
  return {
    left,
    more: more === undefined ? undefined : spanOfNumber(more, clocks)?.seconds,
    quota: quotaOf(quotas),
    window: window === undefined || window < 0 || window > YEAR ? undefined : window,
  };
}

interface NamedItem {
  readonly name: string;
  /** The parameter of this key, if it is a number. */
  number(key: string): number | undefined;
}

/** The members of a list that are names with parameters. */
function itemsOf(field: string | null): NamedItem[] {
  const items: NamedItem[] = [];
  for (const [item, parameters] of listOf(field)) {
    if (Array.isArray(item) || typeof item === "number" || typeof item === "boolean") continue;
    const number = (key: string) => {
      const value = parameters.get(key);
      return typeof value === "number" ? value : undefined;
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
function olderOf(fields: Fields, clocks: Clocks): ToldLimit[] {
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
    const [left, quotas] = [leftOf(numbers(form("remaining"))), numbers(form("limit"))];
    if (left === undefined || isNothing(left, quotas)) return [];
    const [reset, quota] = [spanOf(form("reset") ?? "", clocks), quotaOf(quotas)];
    // A wallet's limit is written as 0, and time brings it nothing.
    const more = quotas.length > 0 && quota === undefined ? undefined : reset?.seconds;
    return [{ left, more, quota, window: undefined }];
  });
}

/** All numbers of a field, which may be several that were joined; none if something else is among them. */
function numbers(field: string | null): number[] {
  const members = (field ?? "").split(",").map((member) => member.replace(/;.*/, "").trim());
  return members.every((member) => /^-?\d+(\.\d+)?$/.test(member)) ? members.map(Number) : [];
}

/** The least that is left. Where there is no limit servers write -1; any other number below none is a debt. */
function leftOf(told: (number | undefined)[]): number | undefined {
  const known = told.filter((left) => left !== undefined && left !== -1) as number[];
  return known.length === 0 ? undefined : Math.max(0, Math.floor(Math.min(...known)));
}

/** Whether nothing is left of nothing: so servers write that there is no limit. */
function isNothing(left: number, quotas: (number | undefined)[]): boolean {
  return left === 0 && quotas.some((quota) => quota !== undefined) && quotaOf(quotas) === undefined;
}

/** The least quota. One of none, or of less, is no promise. */
function quotaOf(told: (number | undefined)[]): number | undefined {
  const known = told.filter((quota) => quota !== undefined && quota >= 1) as number[];
  return known.length === 0 ? undefined : Math.floor(Math.min(...known));
}

/** `HIT`, `TCP_HIT`, `Hit from cloudfront`, `ExampleCache; hit`; not `RefreshHit`: the server was asked. */
const HIT = /(?<![a-z]|refresh_)hit(?![a-z])/i;
