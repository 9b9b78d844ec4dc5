// One mirror for each key.
import { RateLimitMirror, type MirrorOptions } from "./mirror.js";

export interface MirrorsOptions extends MirrorOptions {
  /** How many mirrors are kept, but for those in use, or told of an instant that is yet to come. */
  size?: number;
}

/** A mirror for each key, such as the origin, the user, or the limit that a call has to do with. */
export class RateLimitMirrors {
  readonly #size: number;
  readonly #options: MirrorOptions;
  /** The least recently used comes first. */
  readonly #mirrors = new Map<string, RateLimitMirror>();

  constructor({ size = 1_000, ...options }: MirrorsOptions = {}) {
    [this.#size, this.#options] = [size, options];
  }

  /** The mirror of this key: the same one as long as it is in use. */
  of(key: string): RateLimitMirror {
    const mirror = this.#mirrors.get(key) ?? new RateLimitMirror(this.#options);
    this.#mirrors.delete(key);
    this.#makeRoom();
    this.#mirrors.set(key, mirror);
    return mirror;
  }

  /** Forgets the least recently used. One that is in use stays: a second one beside it would not know what it knows. */
  #makeRoom(): void {
    if (this.#mirrors.size < this.#size) return;
    for (const [key, mirror] of this.#mirrors) {
      if (!mirror.isIdle) continue;
      this.#mirrors.delete(key);
      return;
    }
  }
}
