// The mirror for React.
import { useSyncExternalStore } from "react";
import type { Known, RateLimitMirror } from "./mirror.js";

/** What a mirror knows of a call of this cost. The component is drawn anew when that changes. */
export function useRateLimit(mirror: RateLimitMirror, cost = 1): Known {
  const known = () => mirror.known(cost);
  return useSyncExternalStore(mirror.subscribe, known, known);
}
