// What answers say of trouble and of waits: `http/tests/pure/trouble.rs` tries the library by the same cases.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { RateLimitMirror } from "../dist/index.js";

const { today, cases } = JSON.parse(await readFile(new URL("troubles.json", import.meta.url), "utf8"));

/** How long a mirror holds back after an answer, in seconds. */
function waitAfter(status, fields, ahead) {
  const options = { clock: () => 0, today: () => Date.parse(today) + ahead, random: () => 0 };
  const mirror = new RateLimitMirror(options);
  const lines = Object.entries(fields).flatMap(([name, told]) => [told].flat().map((line) => [name, line]));
  mirror.record({ status, headers: new Headers(lines) });
  return mirror.wait() / 1000;
}

test("the mirror holds back after what the library calls trouble, for as long", () => {
  const wrong = [];
  for (const [status, fields, answer] of cases) {
    // A guess, or a wait for the server's word, where no wait is told.
    const waits = { nothing: [0], failure: [0.25], trouble: [0.25, Infinity] }[answer] ?? [answer];
    for (const ahead of fields.date === today ? [0, 3_600_000] : [0]) {
      const wait = waitAfter(status, fields, ahead);
      const isRight = waits.some((one) => one === wait || Math.abs(one - wait) < 1e-3);
      if (!isRight) wrong.push(`${status} ${JSON.stringify(fields)} is ${wait}, not ${answer}`);
    }
  }
  assert.deepEqual(wrong, []);
});
