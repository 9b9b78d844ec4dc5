// The core: the arithmetic that decides in the server, compiled for browsers.
import { type TrialRecord, initSync, rustOf, simulate } from "core/tollgate_web.js";
import bytes from "core/tollgate_web_bg.wasm";
import type { Scene, Tried } from "./scene";

initSync({ module: bytes });

/** What is wrong with a part of a scene. */
export interface Fault {
  /** `limits.0.rate`, `traffic.1`, `csv`, `work`, `seed`. */
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
  /** Granted, and failed at the service. */
  Failed = 3,
}

/** What became of each call under one limit. Instants and spans are microseconds, amounts are micro-tokens. */
export interface Trial {
  answers: Uint8Array;
  waits: Float64Array;
  balances: Float64Array;
  /** The share of its rate that each call left to the limit. */
  shares: Float64Array;
  /** Instant and balance of the watched caller, in turn. */
  levels: Float64Array;
  /** How many numbers of `levels` tell of the time up to each call. */
  seen: Uint32Array;
  /** Ends of calls, `END` numbers each. */
  ends: Float64Array;
  /** Instant and what the bound bounds, in turn. */
  used: Float64Array;
  /** Infinite, if there is none. */
  bound: number;
  figures: Figures;
}

/** The numbers of an end, in their order; `call` is from 0, `made` is how many calls were made before. */
export const END = ["at", "call", "by", "made", "seen"] as const;

/** What a trial comes to. */
export interface Figures {
  calls: number;
  /** Calls that were granted, and did not fail at the service. */
  granted: number;
  failed: number;
  refused: number;
  /** Calls that no wait lets through. */
  impossible: number;
  /** The longest that a refusal told somebody to wait. */
  longest: number;
  /** The longest that a grant is not ready. */
  latest: number;
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
  const recording = told(() => simulate(textOf(scene)));
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
  return told(() => rustOf(textOf({ limits: [limit] })));
}

function trialOf(trial: TrialRecord): Trial {
  const [answers, waits] = [trial.answers(), trial.waits()];
  const figures = figuresOf(answers, waits);
  const [balances, shares, levels, seen, ends, used] = [
    trial.balances(),
    trial.shares(),
    trial.levels(),
    trial.seen(),
    trial.ends(),
    trial.used(),
  ];
  return { answers, waits, balances, shares, levels, seen, ends, used, bound: trial.bound(), figures };
}

function figuresOf(answers: Uint8Array, waits: Float64Array): Figures {
  const got = [0, 0, 0, 0];
  let [longest, latest] = [0, 0];
  answers.forEach((answer, call) => {
    got[answer]! += 1;
    if (answer === Answer.Refused) longest = Math.max(longest, waits[call]!);
    if (answer === Answer.Granted) latest = Math.max(latest, waits[call]!);
  });
  const [granted, refused, impossible, failed] = got as [number, number, number, number];
  return { calls: answers.length, granted, failed, refused, impossible, longest, latest };
}

/** A scene as the core reads it: names and values in turn, each before a NUL. What belongs to a limit follows it. */
export function textOf({ limits, ...others }: Scene): string {
  const pairs = limits.flatMap(({ name, words, global, follows }) => [
    ["limit", name],
    ...words,
    ...(global ? [["global", ""]] : []),
    ...(follows ? [["follows", follows]] : []),
  ]);
  for (const [name, value] of Object.entries(others)) {
    if (Array.isArray(value)) pairs.push(...value.map((one) => [name, `${one}`]));
    else if (value !== false) pairs.push([name, value === true ? "" : value]);
  }
  return pairs
    .flat()
    .map((text) => `${text.replaceAll("\x01", "\x011").replaceAll("\0", "\x010")}\0`)
    .join("");
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
export function faultsOf(text: string): Fault[] {
  return [...text.matchAll(/(.*?)\0(.*?)\0/gs)].map(([, place = "", message = ""]) => ({ place, message }));
}

/** Calls and ends of a slice: they take a third of a millisecond, or three where a limit has given a thousand leases. */
const SLICE = 100;
