// The core: the arithmetic that decides in the server, compiled for browsers.
import { type Figures, type Recording, type TrialRecord, initSync, rustOf, simulate } from "core/tollgate_web.js";
import bytes from "core/tollgate_web_bg.wasm";
import type { Scene, Tried } from "./scene";

initSync({ module: bytes });

/** What is wrong with a part of a scene. */
export interface Fault {
  /** `limits.0.rate`, `traffic.1`, `csv`, `work`, `funds`. */
  place: string;
  message: string;
}

/** Faults, all of them. */
export class Faulty extends Error {
  constructor(readonly faults: Fault[]) {
    super(faults.map((fault) => fault.message).join("; "));
  }
}

/** Which answer a call got. */
export const enum Answer {
  Granted = 0,
  Refused = 1,
  Impossible = 2,
}

/** What became of each call under one limit. Instants and spans are microseconds, amounts are micro-tokens. */
export interface Trial {
  answers: Uint8Array;
  waits: Float64Array;
  balances: Float64Array;
  /** Instant and balance of the first caller, in turn. */
  levels: Float64Array;
  /** Instant and what the bound bounds, in turn. */
  used: Float64Array;
  bound: number;
  figures: Figures;
}

/** What became of a scene. */
export interface Record {
  span: number;
  instants: Float64Array;
  costs: Float64Array;
  keys: string[];
  trials: Trial[];
}

/** Tries the limits of a scene on its calls. Throws `Faulty`. */
export function record(scene: Scene): Record {
  const recording = told(() => simulate(JSON.stringify(scene)));
  try {
    const trials = scene.limits.map((_, place) => recording.trial(place)).filter((trial) => trial !== undefined);
    return {
      span: recording.span(),
      instants: recording.instants(),
      costs: recording.costs(),
      keys: recording.keys(),
      trials: trials.map(trialOf),
    };
  } finally {
    recording.free();
  }
}

/** A limit as a constant of Rust. Throws `Faulty`. */
export function rust(limit: Tried): string {
  return told(() => rustOf(JSON.stringify(limit)));
}

function trialOf(trial: TrialRecord): Trial {
  const { answers, waits, balances, levels, used, bound, figures } = {
    answers: trial.answers(),
    waits: trial.waits(),
    balances: trial.balances(),
    levels: trial.levels(),
    used: trial.used(),
    bound: trial.bound(),
    figures: trial.figures(),
  };
  trial.free();
  return { answers, waits, balances, levels, used, bound, figures };
}

function told<T extends string | Recording>(ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    if (typeof error === "string") throw new Faulty(JSON.parse(error) as Fault[]);
    throw error;
  }
}
