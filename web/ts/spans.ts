// How far the instants are that header fields name. Servers write them in many units, and the size tells which.

/** So many seconds from now; not exact if the client's own clock had to say how far an instant is. */
export interface Span {
  readonly seconds: number;
  readonly isExact: boolean;
}

/** The clocks by which an instant is so far. All instants are in seconds since 1970. */
export interface Clocks {
  /** The server's, as `Date` has it; `undefined` where that is hidden from scripts. */
  readonly server: number | undefined;
  /** The client's own. */
  readonly client: number;
}

/** The clocks of a response that has this `Date`. */
export function clocksOf(date: string | null, client: number): Clocks {
  return { server: dateOf(date?.trim() ?? "", client), client };
}

/**
 * The span until the latest of the instants that a field lists; `undefined` if one of them is wrong, or beyond a year.
 *
 * Each is a number, a duration (`6m0s`, `20ms`), an HTTP-date, or a date and time of ISO 8601 with its zone. A
 * negative one counts for nothing.
 */
export function spanOf(field: string, clocks: Clocks): Span | undefined {
  if (!LIST.test(field)) return undefined;
  const told = [...field.matchAll(MEMBER)].map(([member]) => member).filter((member) => !member.startsWith("-"));
  const spans = told.map((member) => memberOf(member, clocks));
  const known = spans.filter((span) => span !== undefined);
  if (known.length < spans.length || known.length === 0) return undefined;
  const seconds = Math.max(...known.map((span) => span.seconds));
  return { seconds, isExact: known.every((span) => span.isExact) };
}

/** A number up to a year's seconds is a span. A greater one is an instant: its size tells the unit since 1970. */
export function spanOfNumber(number: number, clocks: Clocks): Span | undefined {
  if (number < 0) return undefined;
  if (number <= YEAR) return { seconds: number, isExact: true };
  // For three thousand years on, milliseconds have more digits than seconds, and so on.
  const unit = [1, 1e3, 1e6].find((unit) => number < 1e11 * unit) ?? 1e9;
  return until(number / unit, clocks);
}

function memberOf(member: string, clocks: Clocks): Span | undefined {
  if (NUMBER_ALONE.test(member)) return spanOfNumber(Number(member), clocks);
  if (DURATION_ALONE.test(member)) return within(durationOf(member), true);
  const instant = ISO_ALONE.test(member) ? isoOf(member) : dateOf(member, clocks.client);
  return instant === undefined ? undefined : until(instant, clocks);
}

/** An instant that is over is now. One that is far away comes from a wrong clock, or is in no unit of these. */
function until(instant: number, { server, client }: Clocks): Span | undefined {
  return within(instant - (server ?? client), server !== undefined);
}

function within(seconds: number, isExact: boolean): Span | undefined {
  return Math.abs(seconds) <= YEAR ? { seconds: Math.max(0, seconds), isExact } : undefined;
}

function durationOf(duration: string): number {
  const parts = [...duration.matchAll(/([\d.]+)(\D+)/g)];
  return parts.reduce((sum, [, count, unit]) => sum + Number(count) * UNITS[unit as keyof typeof UNITS], 0);
}

function isoOf(text: string): number | undefined {
  const strict = text.replace(" ", "T").replace(/ ?UTC$/, "Z").replace(/ ?([+-]\d\d):?(\d\d)$/, "$1:$2");
  const instant = Date.parse(strict);
  return Number.isNaN(instant) ? undefined : instant / 1000;
}

/** The instant of an HTTP-date, which has three forms (RFC 9110, section 5.6.7). */
function dateOf(date: string, today: number): number | undefined {
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

/** No wait that a client can sit out is longer. */
export const YEAR = 366 * 86_400;
/** In seconds; the longer name comes first, so that milliseconds are no minutes. Micro is written in two ways. */
const UNITS = { ms: 1e-3, us: 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, ns: 1e-9, d: 86_400, h: 3_600, m: 60, s: 1 };
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
const alone = (form: string) => new RegExp(`^${form}$`);
const DATES = FORMS.map(alone);
const NUMBER = "\\d+(?:\\.\\d+)?";
const DURATION = `(?:${NUMBER}(?:${Object.keys(UNITS).join("|")}))+`;
// Without its zone nobody knows when that is.
const ISO = "\\d{4}-\\d\\d-\\d\\d[T ]\\d\\d:\\d\\d:\\d\\d(?:\\.\\d+)?(?:Z| ?UTC| ?[+-]\\d\\d:?\\d\\d)";
const [NUMBER_ALONE, DURATION_ALONE, ISO_ALONE] = [alone(NUMBER), alone(DURATION), alone(ISO)];
// The longer forms come first: each of them begins as a shorter one does.
const ONE = [...FORMS.map((form) => form.replaceAll(/\?<\w+>/g, "?:")), ISO, DURATION, `-?${NUMBER}`].join("|");
const MEMBER = new RegExp(ONE, "g");
const LIST = new RegExp(`^\\s*(?:${ONE})(?:\\s*,\\s*(?:${ONE}))*\\s*$`);
