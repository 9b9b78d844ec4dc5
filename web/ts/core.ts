// The core: the arithmetic that decides in the server, compiled for browsers.
import { type TrialRecord, initSync, rustOf, simulate } from "core/tollgate_web.js";
import bytes from "core/tollgate_web_bg.wasm";
import type { Scene, Tried } from "./scene";

initSync({ module: bytes });

/** What is wrong with a part of a scene. */
export interface Fault {
  /** `limits.0.rate`, `traffic.1`, `csv`, `work`, `used`. */
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

/** What a trial comes to. */
export interface Figures {
  calls: number;
  granted: number;
  refused: number;
  /** Calls that no wait lets through. */
  impossible: number;
  /** The longest that a refusal told somebody to wait. */
  longest: number;
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
  const slices = recorded(scene);
  for (;;) {
    const slice = slices.next();
    if (slice.done) return slice.value;
  }
}

/** A recording that goes on whenever it is asked to. */
export type Slices = Generator<undefined, Record>;

/** The same in slices, so that who asks for the next can do something else in between. */
export function* recorded(scene: Scene): Slices {
  const recording = told(() => simulate(JSON.stringify(scene)));
  let trial: TrialRecord | undefined;
  try {
    const [span, instants, costs] = [recording.span(), recording.instants(), recording.costs()];
    const keys = instants.length === 0 ? [] : recording.keys().split("\0");
    const trials: Trial[] = [];
    while ((trial = recording.nextTrial()) !== undefined) {
      const under = trial;
      while (!told(() => under.advance(SLICE))) yield;
      trials.push(trialOf(under));
      under.free();
    }
    return { span, instants, costs, keys, trials };
  } finally {
    trial?.free();
    recording.free();
  }
}

/** A limit as a constant of Rust. Throws `Faulty`. */
export function rust(limit: Tried): string {
  return told(() => rustOf(JSON.stringify(limit)));
}

function trialOf(trial: TrialRecord): Trial {
  const [answers, waits] = [trial.answers(), trial.waits()];
  const figures = figuresOf(answers, waits);
  return { answers, waits, balances: trial.balances(), levels: trial.levels(), used: trial.used(), bound: trial.bound(), figures };
}

function figuresOf(answers: Uint8Array, waits: Float64Array): Figures {
  const got = [0, 0, 0];
  let longest = 0;
  answers.forEach((answer, call) => {
    got[answer]! += 1;
    if (answer === Answer.Refused) longest = Math.max(longest, waits[call]!);
  });
  const [granted, refused, impossible] = got as [number, number, number];
  return { calls: answers.length, granted, refused, impossible, longest };
}

function told<T>(ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    if (typeof error === "string") throw new Faulty(faultsOf(error));
    throw error;
  }
}

/** Places and messages in turn, each before a NUL. */
function faultsOf(text: string): Fault[] {
  return [...text.matchAll(/(.*?)\0(.*?)\0/gs)].map(([, place = "", message = ""]) => ({ place, message }));
}

/** Calls and ends of a slice: they take a third of a millisecond, or three where a limit has given a thousand leases. */
const SLICE = 100;
