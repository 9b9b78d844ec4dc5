// The order of sending: one call at a time, in the order in which they came. A call that has to wait for more lets
// others pass.

/** A call that is to be sent. */
export interface Ticket {
  /** Its place in the order. */
  readonly number: number;
  readonly cost: number;
  /** It is not sent later. */
  readonly latest: number;
  readonly signal: AbortSignal | null;
}

interface Waiting extends Ticket {
  go(): void;
  stop(reason: unknown): void;
  /** By how much it comes later than told: drawn once it has to wait. */
  late?: number;
  /** When it was to be sent at first. Until then others overtake it, so that it is sent at all. */
  yieldsUntil?: number;
}

export class Turns {
  readonly #clock: () => number;
  readonly #readyAt: (cost: number) => number;
  readonly #late: () => number;
  readonly #waiting: Waiting[] = [];
  #isBusy = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(clock: () => number, readyAt: (cost: number) => number, late: () => number) {
    [this.#clock, this.#readyAt, this.#late] = [clock, readyAt, late];
  }

  get isIdle(): boolean {
    return !this.#isBusy && this.#waiting.length === 0;
  }

  /** Sends when it is time. Rejects if that would be too late, or when the signal says so. */
  async take<T>(ticket: Ticket, send: () => Promise<T>): Promise<T> {
    await this.#turnOf(ticket);
    try {
      return await send();
    } finally {
      this.#isBusy = false;
      this.advance();
    }
  }

  /** Lets the first call go that may, and looks again when the next may. */
  advance(): void {
    clearTimeout(this.#timer);
    const now = this.#clock();
    let isHeld = this.#isBusy;
    let soonest = Infinity;
    for (const waiting of [...this.#waiting]) {
      const told = this.#readyAt(waiting.cost);
      if (told > now) {
        waiting.late ??= this.#late();
        waiting.yieldsUntil ??= told;
      }
      const at = Math.max(told, Math.min(told + (waiting.late ?? 0), waiting.latest));
      if (at <= now && !isHeld) {
        isHeld = this.#isBusy = true;
        this.#leave(waiting);
        waiting.go();
        continue;
      }
      if (at > waiting.latest || now >= waiting.latest) {
        this.#leave(waiting);
        waiting.stop(new DOMException("the call would have to wait for too long", "TimeoutError"));
        continue;
      }
      if (now >= (waiting.yieldsUntil ?? Infinity)) isHeld = true;
      soonest = Math.min(soonest, waiting.latest, at > now ? at : Infinity);
    }
    // A timer stands still while the machine sleeps, and fires a fraction of a millisecond early: then this looks anew.
    const span = Math.min(Math.ceil(soonest - now), LONGEST_TIMER);
    if (soonest !== Infinity) this.#timer = setTimeout(() => this.advance(), span);
  }

  #turnOf(ticket: Ticket): Promise<void> {
    const { signal } = ticket;
    return new Promise<void>((go, stop) => {
      signal?.throwIfAborted();
      const waiting = { ...ticket, go, stop };
      const abort = () => {
        this.#leave(waiting);
        stop(signal!.reason);
        this.advance();
      };
      signal?.addEventListener("abort", abort, { once: true });
      waiting.go = () => {
        signal?.removeEventListener("abort", abort);
        go();
      };
      waiting.stop = (reason) => {
        signal?.removeEventListener("abort", abort);
        stop(reason);
      };
      this.#waiting.push(waiting);
      this.#waiting.sort((one, other) => one.number - other.number);
      this.advance();
    });
  }

  #leave(waiting: Waiting): void {
    this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
  }
}

/** In milliseconds: how late a call is sent at most that was due while the machine slept. */
const LONGEST_TIMER = 10_000;
