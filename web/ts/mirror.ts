// A client's picture of its limit at an API: from header fields, by the server's clock.
import { Answer, type Charges } from "./answer.js";
import { wakeful } from "./clock.js";
import { isRefusal, isStored, limitsOf, retryAfterOf, type Fields } from "./fields.js";
import { Turns, type Ticket } from "./turns.js";

/** A response, as `fetch` has it. */
export interface Answered {
  readonly status: number;
  readonly headers: Fields;
}

export interface MirrorOptions {
  /** Milliseconds that never go back. They may stand still while the machine sleeps. */
  clock?: () => number;
  /**
   * Milliseconds since 1970: for the time that the machine has slept, and for instants in a response whose `Date` is
   * hidden from scripts.
   */
  today?: () => number;
  /** From 0 to 1, without 1. */
  random?: () => number;
  /** Milliseconds by which each wait of `fetch` is lengthened at most, so that clients do not come back at once. */
  jitter?: number;
  /** How long `fetch` waits at most before it sends, in milliseconds. A minute by default. */
  maxWait?: number;
}

/** What is known now. */
export interface Known {
  /** Whole tokens that are there at least; `undefined` before the first response with fields. */
  readonly balance: number | undefined;
  /** Whether nothing that was told forbids the call. */
  readonly passes: boolean;
  /** Whole seconds until it passes, rounded up; `Infinity` if no instant is known, so that only the server can tell. */
  readonly seconds: number;
}

/** A call that was sent. Until its answer comes it may have been charged, so it counts as charged. */
export interface Sent {
  answered(response: Answered): void;
  /** No answer came. It counts as charged until a call that is sent later is told what is left. */
  lost(): void;
  /** Nobody waits for the answer any more: as lost, but no failure of the server. */
  abandoned(): void;
}

/** What is sent: as `fetch` takes it, with a cost, and how long it may wait. */
export type Sending = RequestInit & { cost?: number; maxWait?: number };

interface Flight {
  readonly cost: number;
  /** The place of its sending in the order of what happened. */
  readonly sent: number;
  /** What other calls may have taken since, of which no answer has told. */
  others: Charges;
}

interface Recorded {
  readonly answer: Answer;
  readonly flight: Flight;
  /** The place of its arrival in the order of what happened. */
  readonly at: number;
}

/**
 * The balance in a server's latest answer, brought to now.
 *
 * It never says that a call passes before the server would grant it, as long as nobody else spends and each answer
 * tells of all limits of its call:
 *
 * - It counts from the arrival of an answer, which is after its decision.
 * - Between two instants of an answer it assumes the lesser balance.
 * - A call without an answer counts as charged, and so does one whose answer names no balance. This ends with the next
 *   balance that a call sent later gets: it assumes that the server has decided the lost call by then.
 * - Of answers to calls that were under way together the one that leaves less counts.
 * - `Retry-After` alone says when the refused call passes. It says nothing of a call that costs more.
 *
 * Before the first answer it says that a call passes. After a failure without an instant it tries again, later each
 * time.
 */
export class RateLimitMirror {
  readonly #clock: () => number;
  readonly #today: () => number;
  readonly #random: () => number;
  readonly #maxWait: number;
  readonly #turns: Turns;
  /** The newest answer, and those to calls that were under way together with its own. */
  #answers: Recorded[] = [];
  readonly #flights = new Set<Flight>();
  #happened = 0;
  /** Nothing passes before, as a server said that is not available. */
  #toldUntil = -Infinity;
  /** Nothing passes before, as is guessed after a failure. */
  #guessedUntil = -Infinity;
  /** Failures in a row that named no instant. */
  #failures = 0;
  readonly #listeners = new Set<() => void>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #known = new Map<number, Known>();

  constructor(options: MirrorOptions = {}) {
    const { clock = () => performance.now(), today = Date.now, random = Math.random } = options;
    const { jitter = 250, maxWait = 60_000 } = options;
    [this.#clock, this.#today, this.#random, this.#maxWait] = [wakeful(clock, today), today, random, maxWait];
    this.#turns = new Turns(this.#clock, (cost) => this.#askAt(cost), () => random() * jitter);
  }

  /** Learns that a call is sent. `fetch` does so itself. */
  sent(cost = 1): Sent {
    const flight = this.#takeOff(cost);
    this.#changed();
    return {
      answered: (response) => this.#land(flight, () => this.#answered(flight, response)),
      lost: () => this.#land(flight, () => this.#failed(flight)),
      abandoned: () => this.#land(flight, () => this.#charged(flight)),
    };
  }

  /** Learns from a response to a call of this cost: where calls are sent one after another. */
  record(response: Answered, cost = 1): void {
    const flight = this.#takeOff(cost);
    this.#land(flight, () => this.#answered(flight, response));
  }

  /** Learns that no answer came to a call of this cost. */
  failed(cost = 1): void {
    const flight = this.#takeOff(cost);
    this.#land(flight, () => this.#failed(flight));
  }

  /** Whole tokens that are there at least. */
  balance(): number | undefined {
    const now = this.#clock();
    const told = this.#answers.filter(({ answer }) => answer.hasLimits);
    if (told.length === 0) return undefined;
    const left = told.map((recorded) => recorded.answer.leftAt(now, this.#chargesSince(recorded)));
    return Math.max(0, Math.floor(Math.min(...left)));
  }

  /** Whether nothing that was told forbids a call now. */
  passes(cost = 1): boolean {
    return this.wait(cost) <= 0;
  }

  /** Milliseconds until a call passes; `Infinity` if no instant is known. */
  wait(cost = 1): number {
    const enough = this.#answers.map((recorded) => recorded.answer.enoughAt(cost, this.#chargesSince(recorded)));
    return Math.max(0, Math.max(this.#toldUntil, this.#guessedUntil, ...enough) - this.#clock());
  }

  /** What is known now: the same object as long as it is the same. */
  known(cost = 1): Known {
    const wait = this.wait(cost);
    const fresh = { balance: this.balance(), passes: wait <= 0, seconds: Math.ceil(wait / 1000) };
    const before = this.#known.get(cost);
    const isSame = before?.balance === fresh.balance && before?.seconds === fresh.seconds;
    if (isSame && before.passes === fresh.passes) return before;
    this.#known.set(cost, fresh);
    return fresh;
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

  /** Whether nothing is lost with it: nobody listens, nothing waits or is under way, and nothing comes that was told. */
  get isIdle(): boolean {
    const isUsed = this.#listeners.size > 0 || this.#flights.size > 0 || !this.#turns.isIdle;
    return !isUsed && this.#comesAfter(this.#clock()).length === 0;
  }

  /**
   * Sends a call when it passes, past the browser's cache unless `cache` says otherwise. One call is under way at a
   * time, in the order of the calls, but those that pass overtake one that has to wait for more, until the instant at
   * which it was to be sent at first. Where it knows no instant, it asks the server, after all instants of earlier
   * answers.
   *
   * A refused call is sent once more, when it passes: a 429, or another 4xx with `Retry-After`. It resolves to the
   * refusal if no instant is known, if that is later than `maxWait`, or if its body is a stream, which can be sent only
   * once. A 5xx with `Retry-After` holds all calls back, and is not sent again: it may have been done.
   *
   * Rejects as `fetch` does: no call is sent again of which no answer came. Rejects with the reason of the signal, also
   * while it waits. Rejects with a `TimeoutError`, without sending, once it would have to wait longer than `maxWait`.
   */
  async fetch(input: RequestInfo | URL, sending: Sending = {}): Promise<Response> {
    const { cost = 1, maxWait = this.#maxWait, ...init } = sending;
    const { signal = null } = init.signal === undefined && input instanceof Request ? input : init;
    const ticket: Ticket = { number: ++this.#happened, cost, latest: this.#clock() + maxWait, signal };
    const send = () => this.#send(input, init, ticket);
    let again: Promise<Response> | undefined;
    const response = await this.#turns.take(ticket, async () => {
      const response = await send();
      const isRefused = isRefusal(response.status, response.headers) && !isStored(response.headers);
      const isWhole = !(init.body instanceof ReadableStream);
      if (isRefused && isWhole && this.wait(cost) !== Infinity && this.#askAt(cost) <= ticket.latest) {
        // Before the next one has its turn.
        again = this.#turns.take(ticket, send);
        // Of a body that has failed already nobody needs to know.
        response.body?.cancel().catch(() => undefined);
      }
      return response;
    });
    return again ?? response;
  }

  async #send(input: RequestInfo | URL, init: RequestInit, { cost, signal }: Ticket): Promise<Response> {
    // A request can be sent once.
    const request = input instanceof Request ? input.clone() : input;
    const call = this.sent(cost);
    try {
      const response = await fetch(request, { cache: uncached(input), ...init });
      call.answered(response);
      return response;
    } catch (error) {
      if (signal?.aborted === true) call.abandoned();
      else call.lost();
      throw error;
    }
  }

  #takeOff(cost: number): Flight {
    const flight: Flight = { cost, sent: ++this.#happened, others: NOTHING };
    this.#flights.add(flight);
    return flight;
  }

  /** What becomes of a flight, once. */
  #land(flight: Flight, learn: () => void): void {
    if (!this.#flights.delete(flight)) return;
    learn();
    this.#changed();
  }

  #answered(flight: Flight, { status, headers }: Answered): void {
    if (isStored(headers)) return this.#charged(flight);
    const [now, today] = [this.#clock(), this.#today() / 1000];
    const told = limitsOf(headers, today);
    const wait = retryAfterOf(headers, today);
    const isTold = wait?.isExact === true;
    const [isRefused, isDown] = [isRefusal(status, headers), status >= 500];
    const isServed = !isRefused && !isDown;
    if (isServed || isTold) this.#failures = 0;
    if (isServed) this.#guessedUntil = -Infinity;
    const named = now + (wait?.seconds ?? 0) * 1000;
    const until = isServed || isTold ? named : Math.max(named, this.#backOff());
    if (isDown && wait !== undefined) this.#toldUntil = Math.max(this.#toldUntil, until);
    else if (isDown) this.#guessedUntil = Math.max(this.#guessedUntil, until);
    const refusal = isRefused ? { cost: flight.cost, until, isTold } : undefined;
    if (told.limits.length > 0 || refusal !== undefined) {
      this.#answers = this.#answers.filter(({ at }) => at > flight.sent);
      this.#answers.push({ answer: new Answer(told, refusal, now), flight, at: ++this.#happened });
    } else {
      if (isServed) this.#forgetRefusals(flight, now);
      this.#charged(flight);
    }
  }

  /** A call was granted without a word of what is left: a refusal of no more, or until before, holds no longer. */
  #forgetRefusals({ cost, sent }: Flight, now: number): void {
    this.#answers = this.#answers.filter(({ answer: { hasLimits, refusal }, at }) => {
      const isOver = refusal !== undefined && (refusal.cost <= cost || refusal.until <= now);
      return hasLimits || at > sent || !isOver;
    });
  }

  #failed(flight: Flight): void {
    this.#guessedUntil = Math.max(this.#guessedUntil, this.#backOff());
    this.#charged(flight);
  }

  /** Until when to wait where no instant is named: twice as long as before, up to a minute, and at random. */
  #backOff(): number {
    const most = Math.min(60_000, 500 * 2 ** this.#failures);
    this.#failures += 1;
    return this.#clock() + most * (0.5 + this.#random() / 2);
  }

  /** A call may have been charged, and no answer tells. One to a call that is sent later does. */
  #charged({ cost }: Flight): void {
    const until = this.#clock();
    for (const flight of [...this.#flights, ...this.#answers.map((recorded) => recorded.flight)]) {
      flight.others = { cost: flight.others.cost + cost, until };
    }
  }

  #chargesSince({ flight }: Recorded): Charges {
    const flying = [...this.#flights].reduce((sum, { cost }) => sum + cost, 0);
    if (flying === 0) return flight.others;
    return { cost: flight.others.cost + flying, until: Infinity };
  }

  /** When a call is sent: when it passes, or, where nobody knows when that is, after all instants that are known. */
  #askAt(cost: number): number {
    const asked = this.#answers.map((recorded) => {
      const charges = this.#chargesSince(recorded);
      const at = recorded.answer.enoughAt(cost, charges);
      return at === Infinity ? Math.max(-Infinity, ...recorded.answer.instants(charges)) : at;
    });
    return Math.max(this.#toldUntil, this.#guessedUntil, ...asked);
  }

  #changed(): void {
    this.#known.clear();
    for (const listener of this.#listeners) listener();
    this.#tick();
    this.#turns.advance();
  }

  /** The instants behind this one at which more may pass. */
  #comesAfter(now: number): number[] {
    const told = this.#answers.flatMap((recorded) => recorded.answer.instants(this.#chargesSince(recorded)));
    return [this.#toldUntil, this.#guessedUntil, ...told].filter((at) => at > now);
  }

  /** Tells listeners each second, as long as something comes. */
  #tick(): void {
    clearTimeout(this.#timer);
    if (this.#listeners.size === 0) return;
    const now = this.#clock();
    const future = this.#comesAfter(now);
    if (future.length === 0) return;
    const next = Math.min(...future.map((at) => (at - now) % 1000 || 1000));
    this.#timer = setTimeout(() => {
      for (const listener of this.#listeners) listener();
      this.#tick();
    }, Math.ceil(next));
  }
}

/** Unless the caller says otherwise the browser's own cache gives no answer, since it is one of long ago. */
function uncached(input: RequestInfo | URL): RequestCache {
  const told = input instanceof Request ? input.cache : "default";
  return told === "default" ? "no-store" : told;
}

const NOTHING: Charges = { cost: 0, until: -Infinity };
