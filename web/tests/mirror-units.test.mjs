// In what units servers tell of waits, and which numbers tell nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { RateLimitMirror } from "../dist/index.js";
import { Clock } from "./clock.mjs";

const DATE = "Wed, 01 Jan 2025 00:00:00 GMT";
const SECOND = Date.parse(DATE) / 1000;
const YEAR = 366 * 86_400;

/** What a mirror knows after one answer, by a client's clock that is `skew` seconds ahead of the server's. */
function after(status, fields, skew = 0) {
  const today = () => (SECOND + skew) * 1000;
  const mirror = new RateLimitMirror({ clock: () => 0, today, random: () => 0 });
  mirror.record({ status, headers: new Headers(fields) });
  return mirror;
}

/** Spans of nine seconds from `DATE`, as servers write them. */
const NINE_SECONDS = [
  "9",
  "9.0",
  `${SECOND + 9}`,
  `${SECOND + 9}.0`,
  `${SECOND + 9}000`,
  `${SECOND + 9}000000`,
  `${SECOND + 9}000000000`,
  "Wed, 01 Jan 2025 00:00:09 GMT",
  "Wednesday, 01-Jan-25 00:00:09 GMT",
  "2025-01-01T00:00:09Z",
  "2025-01-01T00:00:09.000Z",
  "2025-01-01T01:00:09+01:00",
  "2025-01-01 00:00:09Z",
  "0m9s",
  "0h0m9.0s",
  "9s",
  "9000ms",
  "9000000us",
  "9000000µs",
];

test("a wait is read in each unit that servers use, whatever the client's clock says", () => {
  for (const told of NINE_SECONDS) {
    for (const skew of [0, 3_600, -3_600, 10 * YEAR]) {
      const at = `${told} by a clock that is ${skew} s ahead`;
      assert.equal(after(429, { "retry-after": told, date: DATE }, skew).wait(), 9_000, at);
      const reset = { "x-ratelimit-remaining": "0", "x-ratelimit-reset": told, date: DATE };
      assert.equal(after(200, reset, skew).wait(), 9_000, at);
      const joined = { ratelimit: `limit=5, remaining=0, reset=${told}`, date: DATE };
      if (!told.includes(",")) assert.equal(after(200, joined, skew).wait(), 9_000, at);
    }
  }
  const others = [["6m0s", 360_000], ["20ms", 20], ["1h2m3s", 3_723_000], ["1d", 86_400_000], ["1.5", 1_500]];
  for (const [told, wait] of others) {
    assert.equal(after(200, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": told }).wait(), wait, told);
  }
});

test("the parameters of the draft have a sense, too", () => {
  for (const t of ["9", "9.0", `${SECOND + 9}`, `${SECOND + 9}000`]) {
    const fields = { ratelimit: `"api";r=0;t=${t}`, "ratelimit-policy": '"api";q=5;w=60', date: DATE };
    assert.equal(after(200, fields).wait(), 9_000, t);
  }
});

test("an instant beyond a year is none, nor is what is no number, and the server is asked again", async (context) => {
  const nonsense = [
    `${YEAR + 1}`, "999999999", `${SECOND + YEAR + 60}`, `${SECOND - YEAR - 60}`, `${SECOND + YEAR + 60}000`,
    "9".repeat(15), "9".repeat(400), "-1", "-9", `-${SECOND}`, "Infinity", "-Infinity", "NaN", "1e3", "0x10", "1_000",
    "+9", "soon", "9 seconds", "2027-01-01T00:00:00Z", "2025-01-01", "2025-01-01T00:00:09", "2025-13-01T00:00:00Z",
    "Fri, 01 Jan 2027 00:00:00 GMT", "9x", "ms", "9000d", "9, soon", `9, ${"9".repeat(15)}`,
  ];
  for (const told of nonsense) {
    const refused = after(429, { "retry-after": told, date: DATE });
    assert.equal(refused.wait(), 250, `a guess after ${told}`);
    const reset = after(200, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": told, date: DATE });
    assert.deepEqual([reset.balance(), reset.wait()], [0, Infinity], told);
  }
  for (const told of nonsense) {
    const fields = { "retry-after": told, "x-ratelimit-remaining": "0", "x-ratelimit-reset": told, date: DATE };
    const clock = Clock.install(context, () => new Response(null, { status: 429, headers: fields }));
    const options = { clock: () => clock.now, today: () => SECOND * 1000, random: () => 0, jitter: 0 };
    const mirror = new RateLimitMirror(options);
    for (let call = 0; call < 2; call += 1) void mirror.fetch("http://api.test/");
    await clock.pass(600_000);
    assert.ok(clock.sent.length >= 2, `${told}: ${clock.sent}`);
  }
});

test("an instant that is over is now, and of several the latest counts, whatever their units", () => {
  const past = [
    "0", "0s", `${SECOND - 9}`, `${SECOND - 9}000`, "Tue, 31 Dec 2024 23:59:51 GMT", "2024-12-31T23:59:51Z",
  ];
  for (const told of past) {
    assert.equal(after(429, { "retry-after": told, date: DATE }).wait(), 0, told);
  }
  const [date, iso] = ["Wed, 01 Jan 2025 00:00:09 GMT", "2025-01-01T00:00:09Z"];
  for (const told of [`4, ${SECOND + 9}`, `${SECOND + 9}000, 4s`, `${iso}, 4`, `${date}, ${SECOND + 4}`]) {
    assert.equal(after(429, { "retry-after": told, date: DATE }).wait(), 9_000, told);
    const reset = { "x-ratelimit-remaining": "0", "x-ratelimit-reset": told, date: DATE };
    assert.equal(after(200, reset).wait(), 9_000, told);
  }
});

test("an instant by the client's own clock alone comes no sooner than a guess", () => {
  for (const told of [`${SECOND + 9}`, `${SECOND + 9}000`, "2025-01-01T00:00:09Z", "Wed, 01 Jan 2025 00:00:09 GMT"]) {
    assert.equal(after(429, { "retry-after": told }).wait(), 9_000, told);
    assert.equal(after(429, { "retry-after": told }, 3_600).wait(), 250, `${told} by a clock that is ahead`);
  }
});

test("less than none, and a quota of none, tell nothing", () => {
  for (const fields of [
    { "x-ratelimit-limit": "-1", "x-ratelimit-remaining": "-1", "x-ratelimit-reset": "-1" },
    { "x-ratelimit-limit": "0", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "0" },
    { "x-ratelimit-limit": "0", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "60" },
    { "ratelimit-limit": "0", "ratelimit-remaining": "0", "ratelimit-reset": "60" },
    { "x-ratelimit-remaining": "-1", "x-ratelimit-reset": "60" },
    { "x-ratelimit-remaining": "-1.0" },
    { ratelimit: "limit=0, remaining=0, reset=60" },
    { ratelimit: "limit=-1, remaining=-1, reset=-1" },
    { ratelimit: '"api";r=-1;t=60', "ratelimit-policy": '"api";q=-1;w=60' },
    { ratelimit: '"api";r=0;t=60', "ratelimit-policy": '"api";q=0;w=60' },
  ]) {
    const known = after(200, fields).known();
    assert.deepEqual(known, { balance: undefined, passes: true, seconds: 0 }, JSON.stringify(fields));
  }
  const spent = { "x-ratelimit-limit": "10, 0", "x-ratelimit-remaining": "0, 0", "x-ratelimit-reset": "30, 0" };
  assert.deepEqual([after(200, spent).balance(), after(200, spent).wait()], [0, 30_000]);
  const both = { "x-ratelimit-limit": "10, -1", "x-ratelimit-remaining": "4, -1", "x-ratelimit-reset": "30, -1" };
  assert.deepEqual([after(200, both).balance(), after(200, both).wait(5)], [4, 30_000]);
  const unlimited = { ratelimit: '"a";r=3;t=9, "b";r=-1', "ratelimit-policy": '"a";q=5;w=9' };
  assert.deepEqual([after(200, unlimited).balance(), after(200, unlimited).wait(4)], [3, 9_000]);
  for (const debt of ["-2", "-0.5", "5, -7"]) {
    const fields = { "x-ratelimit-limit": "10", "x-ratelimit-remaining": debt, "x-ratelimit-reset": "30" };
    assert.deepEqual([after(200, fields).balance(), after(200, fields).wait()], [0, 30_000], debt);
  }
  const wallet = { ratelimit: '"wallet";r=0', "ratelimit-policy": '"wallet";q=0' };
  assert.equal(after(200, wallet).balance(), 0, "a wallet promises nothing, and is told by its balance");
});

test("each error that names a wait is a refusal until then", async (context) => {
  const told = { "retry-after": "60" };
  for (const status of [400, 402, 403, 408, 413, 420, 423, 425, 429, 430, 451, 498, 500, 502, 503, 504, 520, 529]) {
    const clock = Clock.install(context, async () => {
      await clock.after(10);
      return new Response(null, { status, headers: told });
    });
    const mirror = new RateLimitMirror({ clock: () => clock.now, random: () => 0, jitter: 0 });
    const calls = [1, 2, 3, 4, 5].map(() => mirror.fetch("http://api.test/", { maxWait: 30_000 }));
    const seen = Promise.all(calls.map((call) => call.then((answer) => answer.status, (error) => error.name)));
    await clock.pass(10);
    assert.deepEqual(mirror.known(), { balance: undefined, passes: false, seconds: 60 }, `${status}`);
    await clock.pass(40_000);
    assert.deepEqual(await seen, [status, ...Array(4).fill("TimeoutError")]);
    assert.deepEqual(clock.sent, [0], `${status}`);
  }
  // What may have been done already is not sent again.
  const spent = { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "60" };
  const calls = [[403, 2, told], [403, 2, spent], [404, 1, spent], [429, 2, told], [500, 1, told], [503, 1, told]];
  for (const [status, sent, headers] of calls) {
    const clock = Clock.install(context, () => new Response(null, { status, headers }));
    const mirror = new RateLimitMirror({ clock: () => clock.now, random: () => 0, jitter: 0 });
    void mirror.fetch("http://api.test/");
    await clock.pass(200_000);
    assert.equal(clock.sent.length, sent, `${status}`);
  }
});

test("an error without a wait, and a wait without an error, are no refusals", () => {
  for (const status of [400, 401, 403, 404, 422]) assert.equal(after(status, {}).wait(), 0, `${status}`);
  const wait = { "retry-after": "60" };
  for (const status of [200, 202, 301, 304]) assert.equal(after(status, wait).wait(), 0, `${status}`);
  for (const told of ["soon", "-1", "Infinity"]) assert.equal(after(403, { "retry-after": told }).wait(), 250, told);
  const reset = { "x-ratelimit-remaining": "0", "x-ratelimit-reset": `${SECOND + 9}` };
  const limited = { "x-ratelimit-limit": "60", ...reset, date: DATE };
  assert.equal(after(403, limited).wait(), 9_000);
});
