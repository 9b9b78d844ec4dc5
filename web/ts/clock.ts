// The mirror's clock.

/**
 * A clock that also counts the time in which the machine slept, of which only the other clock tells. If somebody sets
 * that one forward, it counts as a sleep, and the server refuses what then comes too early.
 */
export function wakeful(clock: () => number, today: () => number): () => number {
  let [before, day, slept] = [clock(), today(), 0];
  return () => {
    const [now, date] = [clock(), today()];
    const missed = date - day - (now - before);
    if (missed > SHORTEST_SLEEP) slept += missed;
    [before, day] = [now, date];
    return now + slept;
  };
}

/** In milliseconds. Clocks that are awake differ by less between two looks. */
const SHORTEST_SLEEP = 10_000;
