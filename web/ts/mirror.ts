// What a client of an API knows of its limit: from header fields, by the server's clock.

/** A response, as `fetch` has it. */
export interface Answered {
  readonly status: number;
  readonly headers: { get(name: string): string | null };
}

export interface MirrorOptions {
  /** Milliseconds that never go back. */
  clock?: () => number;
  /** From 0 to 1, without 1. */
  random?: () => number;
  /** By how much each wait of `fetch` is lengthened at most, in milliseconds, so that clients do not come back at once. */
  jitter?: number;
}

/** What is known now. */
export interface Known {
  /** Whole tokens that are there at least; `undefined` before the first response with fields. */
  readonly balance: number | undefined;
  /** Whether nothing forbids the call. */
  readonly passes: boolean;
  /** Whole seconds until it passes, rounded up; `Infinity` if nobody knows when. */
  readonly seconds: number;
}

/** One limit that a response has told of. All instants are by the mirror's own clock. */
interface Told {
  /** Whole tokens left then. */
  left: number;
  /** When there is one more. */
  moreAt: number;
  /** When all are back, and how many these are. */
  fullAt: number;
  quota: number;
}

/**
 * The balance that a server has told, brought to now. It never says that a call passes before the server would grant it,
 * as long as nobody else spends: it counts from the arrival of a response, which is after its decision, and between two
 * instants that were told it assumes the lesser balance.
 */
export class RateLimitMirror {
  #clock: () => number;
  #random: () => number;
  #jitter: number;
  #told: Told[] = [];
  /** Nothing passes before, but what was refused then does. */
  #blockedUntil = -Infinity;
  #refused = 0;
  /** Failures in a row that named no instant. */
  #failures = 0;
  #listeners = new Set<() => void>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #known = new Map<number, Known>();
  #flight: Promise<unknown> = Promise.resolve();

  constructor({ clock = () => performance.now(), random = Math.random, jitter = 250 }: MirrorOptions = {}) {
    [this.#clock, this.#random, this.#jitter] = [clock, random, jitter];
  }

  /** Learns from a response to a call of this cost. */
  record(response: Answered, cost = 1): void {
    const now = this.#clock();
    const told = fieldsOf(response.headers, now);
    const retryAt = retryAfter(response.headers, now);
    const isRefused = response.status === 429 || response.status === 503;
    if (told.length > 0) this.#told = told;
    if (!isRefused) {
      [this.#blockedUntil, this.#refused, this.#failures] = [-Infinity, 0, 0];
    } else if (retryAt !== undefined) {
      [this.#blockedUntil, this.#refused, this.#failures] = [retryAt, response.status === 429 ? cost : 0, 0];
    } else {
      this.failed();
    }
    this.#changed();
  }

  /** Learns that no answer came: waits twice as long as before, up to a minute. */
  failed(): void {
    const most = Math.min(60_000, 500 * 2 ** this.#failures);
    this.#failures += 1;
    this.#refused = 0;
    this.#blockedUntil = this.#clock() + most * (0.5 + this.#random() / 2);
    this.#changed();
  }

  /** Whole tokens that are there at least. */
  balance(): number | undefined {
    if (this.#told.length === 0) return undefined;
    const now = this.#clock();
    return Math.min(...this.#told.map((told) => leftAt(told, now)));
  }

  /** Whether nothing forbids a call now. */
  passes(cost = 1): boolean {
    return this.wait(cost) <= 0;
  }

  /** Milliseconds until a call passes; `Infinity` if nobody knows when. */
  wait(cost = 1): number {
    const now = this.#clock();
    const at = Math.max(this.#blockedUntil, this.#enoughAt(cost));
    return Math.max(0, at - now);
  }

  /** What is known now: the same object as long as it is the same. */
  known(cost = 1): Known {
    const wait = this.wait(cost);
    const fresh = { balance: this.balance(), passes: wait <= 0, seconds: Math.ceil(wait / 1000) };
    const before = this.#known.get(cost);
    const isSame = before?.balance === fresh.balance && before?.passes === fresh.passes && before.seconds === fresh.seconds;
    if (!isSame) this.#known.set(cost, fresh);
    return isSame ? before : fresh;
  }

  /** Calls a listener whenever what is known may have changed: with each response, and each second of a wait. */
  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    this.#tick();
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) clearTimeout(this.#timer);
    };
  };

  /** Sends a call when it passes, after all that were to be sent before. Waits as told, and once more if refused. */
  fetch(input: RequestInfo | URL, init: RequestInit & { cost?: number } = {}): Promise<Response> {
    const { cost = 1, ...request } = init;
    const sent = this.#flight.then(async () => {
      await this.#pass(cost);
      const response = await this.#send(input, request, cost);
      if (response.status !== 429 || this.wait(cost) === Infinity) return response;
      await this.#pass(cost);
      return this.#send(input, request, cost);
    });
    this.#flight = sent.catch(() => undefined);
    return sent;
  }

  async #send(input: RequestInfo | URL, request: RequestInit, cost: number): Promise<Response> {
    try {
      const response = await fetch(input, request);
      this.record(response, cost);
      return response;
    } catch (error) {
      this.failed();
      throw error;
    }
  }

  /** Waits until a call passes. Where nobody knows when, the server is asked. */
  async #pass(cost: number): Promise<void> {
    const wait = this.wait(cost);
    if (wait > 0 && wait !== Infinity) await new Promise((passed) => setTimeout(passed, wait + this.#random() * this.#jitter));
  }

  /** When every limit has so many tokens, as far as is told. */
  #enoughAt(cost: number): number {
    // What was refused passes when it was told to, whatever else is known.
    if (cost <= this.#refused) return -Infinity;
    const enough = ({ left, moreAt, fullAt, quota }: Told) => {
      if (cost <= left) return -Infinity;
      if (cost <= left + 1) return moreAt;
      return cost <= quota ? fullAt : Infinity;
    };
    return Math.max(-Infinity, ...this.#told.map(enough));
  }

  #changed(): void {
    this.#known.clear();
    for (const listener of this.#listeners) listener();
    this.#tick();
  }

  /** Tells listeners each second, as long as something comes. */
  #tick(): void {
    clearTimeout(this.#timer);
    const now = this.#clock();
    const comes = [this.#blockedUntil, ...this.#told.flatMap((told) => [told.moreAt, told.fullAt])];
    const next = Math.min(...comes.filter((at) => at > now && at !== Infinity).map((at) => (at - now) % 1000 || 1000));
    if (this.#listeners.size === 0 || next === Infinity) return;
    this.#timer = setTimeout(() => {
      for (const listener of this.#listeners) listener();
      this.#tick();
    }, Math.ceil(next));
  }
}

function leftAt({ left, moreAt, fullAt, quota }: Told, now: number): number {
  if (now >= fullAt) return Math.max(left, quota);
  return now >= moreAt ? left + 1 : left;
}

/** The limits that header fields tell of: those of the draft, or the older ones. */
function fieldsOf(headers: Answered["headers"], now: number): Told[] {
  const after = (seconds: number | undefined) => (seconds === undefined ? Infinity : now + seconds * 1000);
  const told = (left: number, more: number | undefined, quota?: number, window?: number): Told => {
    // The older fields name an instant also where no token comes any more.
    const moreAt = left >= (quota ?? Infinity) ? Infinity : after(more);
    // From a token on, all are back after a window. Where there is a debt, that begins when it is paid.
    const fullAt = window === undefined ? Infinity : moreAt + window * 1000;
    return { left, moreAt, fullAt, quota: quota ?? 0 };
  };
  const limits = headers.get("ratelimit") ?? "";
  const policies = items(headers.get("ratelimit-policy") ?? "");
  const drafted = items(limits).filter((item) => item.parameters.has("r"));
  if (drafted.length > 0) {
    return drafted.map(({ name, parameters }) => {
      const policy = policies.find((one) => one.name === name)?.parameters;
      return told(parameters.get("r")!, parameters.get("t"), policy?.get("q"), policy?.get("w"));
    });
  }
  const older = new Map([...limits.matchAll(/(limit|remaining|reset)=(\d+)/g)].map(([, name, value]) => [name!, Number(value)]));
  const field = (name: string) => older.get(name) ?? number(headers.get(`ratelimit-${name}`)) ?? number(headers.get(`x-ratelimit-${name}`));
  const [left, reset] = [field("remaining"), field("reset")];
  return left === undefined ? [] : [told(left, reset === undefined ? undefined : span(reset, headers), field("limit"))];
}

/** Seconds until a reset, which may be an instant by the server's clock. */
function span(reset: number, headers: Answered["headers"]): number | undefined {
  // No span is thirty years long, and no clock of a server stands before 2001.
  if (reset < 1e9) return reset;
  const date = instant(headers.get("date"));
  return date === undefined ? undefined : Math.max(0, reset - date);
}

function retryAfter(headers: Answered["headers"], now: number): number | undefined {
  const field = headers.get("retry-after");
  const seconds = number(field);
  if (seconds !== undefined) return now + seconds * 1000;
  const [until, date] = [instant(field), instant(headers.get("date"))];
  return until === undefined || date === undefined ? undefined : now + Math.max(0, until - date) * 1000;
}

/** The members of a structured field that is a list of strings, with their parameters that are whole numbers. */
function items(field: string): { name: string; parameters: Map<string, number> }[] {
  const members = field.matchAll(/"((?:[^"\\]|\\.)*)"((?:\s*;\s*[a-z*][\w.*-]*(?:=(?::[^:]*:|"(?:[^"\\]|\\.)*"|[^;,\s]*))?)*)/g);
  return [...members].map(([, name, parameters]) => {
    const numbers = parameters!.matchAll(/;\s*([a-z*][\w.*-]*)=(\d+)/g);
    return { name: name!, parameters: new Map([...numbers].map(([, key, value]) => [key!, Number(value)])) };
  });
}

function number(field: string | null): number | undefined {
  return field !== null && /^\s*\d{1,15}\s*$/.test(field) ? Number(field) : undefined;
}

/** Seconds since 1970. */
function instant(field: string | null): number | undefined {
  const millis = field === null ? NaN : Date.parse(field);
  return Number.isNaN(millis) ? undefined : millis / 1000;
}
