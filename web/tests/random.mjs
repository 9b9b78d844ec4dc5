/** Random numbers that are the same each time: a linear congruential generator. */
export function randomFrom(seed) {
  let state = seed;
  return () => (state = (state * 1_664_525 + 1_013_904_223) % 2 ** 32) / 2 ** 32;
}
