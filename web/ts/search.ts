// The search for numbers, in a worker of its own: it takes seconds, in which the page goes on.
import { initSync, suggest } from "core/tollgate_web.js";

/** What the page asks, and the core. */
export interface Question {
  core: Uint8Array;
  /** A scene as the core reads it, and the share of calls that may be refused. */
  scene: string;
  share: string;
}

/** What was found, as the core tells it; or the faults. */
export type Found = { choices: Float64Array; choice: number; caveats: string } | { faults: string };

function found({ core, scene, share }: Question): Found {
  initSync({ module: core });
  try {
    const suggested = suggest(scene, share);
    return { choices: suggested.choices(), choice: suggested.choice(), caveats: suggested.caveats() };
  } catch (faults) {
    if (typeof faults === "string") return { faults };
    throw faults;
  }
}

onmessage = ({ data }: MessageEvent<Question>) => postMessage(found(data));
