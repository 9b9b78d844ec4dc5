// One answer, and what follows from it for later instants. Instants are by the mirror's own clock, in milliseconds.
import type { ToldLimit, ToldLimits } from "./fields.js";

/** A call was refused until an instant. */
export interface Refusal {
  readonly cost: number;
  readonly until: number;
  /** Whether the server has named the instant. Else it is a guess. */
  readonly isTold: boolean;
}

/** What other calls may have taken since an answer, all of them until this instant. */
export interface Charges {
  readonly cost: number;
  readonly until: number;
}

/** One limit: between two instants that are known the lesser balance is assumed. */
interface Limit {
  readonly left: number;
  /** When there is one more. */
  readonly moreAt: number;
  /** When it is full. */
  readonly fullAt: number;
  readonly quota: number;
  /** In how long it is full, whatever was taken. */
  readonly window: number;
}

export class Answer {
  readonly refusal: Refusal | undefined;
  readonly #limits: readonly Limit[];
  readonly #isComplete: boolean;

  constructor(told: ToldLimits, refusal: Refusal | undefined, now: number) {
    this.refusal = refusal;
    this.#limits = told.limits.map((limit) => dated(limit, now));
    this.#isComplete = told.isComplete;
  }

  get hasLimits(): boolean {
    return this.#limits.length > 0;
  }

  /** Tokens that are there at least, if limits were told. */
  leftAt(at: number, charges: Charges): number {
    return Math.min(...this.#limits.map((limit) => leftAt(limit, at, charges)));
  }

  /** From when on nothing that was told forbids a call; `Infinity` if no such instant is known. */
  enoughAt(cost: number, charges: Charges): number {
    const instants = [-Infinity, ...this.instants(charges)].sort((one, other) => one - other);
    return instants.find((at) => this.#isEnough(cost, at, charges)) ?? Infinity;
  }

  /** When more may pass than before. */
  instants({ cost, until }: Charges): number[] {
    const ofLimits = this.#limits.flatMap(({ moreAt, fullAt }) => [moreAt, fullAt]);
    const ofCharges = cost > 0 ? this.#limits.map(({ window }) => until + window) : [];
    return [...ofLimits, ...ofCharges, this.refusal?.until ?? Infinity].filter(Number.isFinite);
  }

  #isEnough(cost: number, at: number, charges: Charges): boolean {
    if (this.refusal !== undefined) {
      const { until, isTold, cost: refused } = this.refusal;
      // A limit that is not listed may refuse less, too.
      if (at < until && (cost >= refused || !this.#isComplete)) return false;
      // The wait is over all limits: the refused cost then passes, and a greater one may not. A guess is a try, and
      // without a limit there is no better one.
      if (at >= until && (isTold || !this.hasLimits) && cost + charges.cost <= refused) return true;
    }
    return this.hasLimits && cost <= this.leftAt(at, charges);
  }
}

function dated({ left, more, quota, window }: ToldLimit, now: number): Limit {
  const span = window === undefined || quota === undefined ? Infinity : window * 1000;
  // The older fields name an instant also where no token comes any more.
  if (left >= (quota ?? Infinity)) return { left, moreAt: Infinity, fullAt: -Infinity, quota: left, window: span };
  const moreAt = more === undefined ? Infinity : now + more * 1000;
  // From a token on, all are back after a window. Where there is a debt, that begins when it is paid.
  return { left, moreAt, fullAt: moreAt + span, quota: quota ?? left, window: span };
}

function leftAt({ left, moreAt, fullAt, quota, window }: Limit, at: number, charges: Charges): number {
  // A call is granted only where there is no debt, so a window after the last of them the limit is full.
  const isFull = at >= fullAt && (charges.cost === 0 || at >= charges.until + window);
  if (isFull) return quota;
  const without = at >= fullAt ? quota : at >= moreAt ? left + 1 : left;
  return without - charges.cost;
}
