// A clock and timers that stand still until a test moves them, and a server behind `fetch`.
import { setImmediate } from "node:timers/promises";

export class Clock {
  now = 0;
  #timers = new Map();
  #number = 0;
  #real = {};

  /** Takes the place of the timers and of `fetch`, until the test ends. */
  static install(test, serve = () => new Response()) {
    const clock = new Clock();
    clock.serve = serve;
    clock.sent = [];
    const fakes = {
      // As a real one: whole milliseconds, and at once if they do not fit into 32 bits.
      setTimeout: (run, delay = 0) => {
        const span = delay > 2 ** 31 - 1 ? 1 : Math.max(0, Math.trunc(delay));
        clock.#timers.set((clock.#number += 1), { at: clock.now + span, run });
        return clock.#number;
      },
      clearTimeout: (number) => void clock.#timers.delete(number),
      fetch: (input, init) => clock.#fetch(input, init),
    };
    for (const name of Object.keys(fakes)) clock.#real[name] = globalThis[name];
    Object.assign(globalThis, fakes);
    test.after(() => Object.assign(globalThis, clock.#real));
    return clock;
  }

  get timers() {
    return this.#timers.size;
  }

  after(span) {
    return new Promise((over) => setTimeout(over, span));
  }

  /** Lets so many milliseconds pass. */
  async pass(span) {
    const until = this.now + span;
    for (;;) {
      await settled();
      const [[number, next] = []] = [...this.#timers].sort(([, one], [, other]) => one.at - other.at);
      if (next === undefined || next.at > until) break;
      this.#timers.delete(number);
      this.now = Math.max(this.now, next.at);
      next.run();
    }
    this.now = until;
    await settled();
  }

  async #fetch(input, init) {
    const request = new Request(input, init);
    request.signal.throwIfAborted();
    this.sent.push(this.now);
    const aborted = new Promise((_, stop) => {
      request.signal.addEventListener("abort", () => stop(request.signal.reason));
    });
    return Promise.race([this.serve(request), aborted]);
  }
}

/** Waits for all that follows from what has happened. */
async function settled() {
  for (let turn = 0; turn < 5; turn += 1) await setImmediate();
}
