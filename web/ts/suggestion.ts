// Numbers for a limit that would have refused at most a share of the calls.
import wasm from "core/tollgate_web_bg.wasm";
import { Faulty, faultsOf, textOf } from "./core";
import { type LimitForm, type Scene, limit } from "./scene";
import type { Found, Question } from "./search";

/** The script of the worker that searches. */
declare const SEARCH: string;
// Its types are those of the functions in it, and a page has its bytes.
const core = wasm as unknown as Uint8Array;

/** Numbers of a limit, in whole tokens, and the calls and keys that it refuses. */
export interface Choice {
  rate: number;
  capacity: number;
  calls: number;
  keys: number;
}

export interface Suggestion {
  choices: Choice[];
  /** The place of the answer among them. */
  choice: number;
  /** Reasons to doubt it. */
  caveats: string[];
}

/** A search under way. */
export interface Search {
  /** Rejects with `Faulty`; never ends if it is stopped. */
  answer: Promise<Suggestion>;
  stop(): void;
}

/** Searches numbers for the first limit of a scene: of its kind and period, for its keys. */
export function search(scene: Scene, share: string): Search {
  const address = URL.createObjectURL(new Blob([SEARCH], { type: "text/javascript" }));
  const worker = new Worker(address);
  const stop = () => {
    worker.terminate();
    URL.revokeObjectURL(address);
  };
  const answer = new Promise<Suggestion>((found, failed) => {
    worker.onmessage = ({ data }: MessageEvent<Found>) => {
      stop();
      if ("faults" in data) failed(new Faulty(faultsOf(data.faults)));
      else found(suggestionOf(data));
    };
    worker.onerror = ({ message }) => {
      stop();
      failed(new Error(message));
    };
  });
  const question: Question = { core, scene: textOf(scene), share };
  worker.postMessage(question);
  return { answer, stop };
}

function suggestionOf({ choices, choice, caveats }: Exclude<Found, { faults: string }>): Suggestion {
  const rows = Array.from({ length: choices.length / 4 }, (_, row) => {
    const [rate, capacity, calls, keys] = choices.subarray(4 * row) as unknown as [number, number, number, number];
    return { rate, capacity, calls, keys };
  });
  return { choices: rows, choice, caveats: caveats.split("\0").slice(0, -1) };
}

/** The limit that is asked about: its rate and its capacity are what is searched. */
export function askedOf({ name, kind, per, global }: LimitForm): LimitForm {
  return limit(name, kind, { per, global, rate: "1" });
}

/** The limit with the numbers of a choice. */
export function chosen(form: LimitForm, { rate, capacity }: Choice): LimitForm {
  return { ...askedOf(form), rate: `${rate}`, capacity: form.kind === "token_bucket" ? `${capacity}` : "" };
}
