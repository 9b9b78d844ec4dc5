// When the mirror sends, by a clock that the test moves.
import assert from "node:assert/strict";
import { test } from "node:test";
import { RateLimitMirror } from "../dist/index.js";
import { Clock } from "./clock.mjs";
import { randomFrom } from "./random.mjs";

const URL = "http://api.test/";
const told = (status, fields) => new Response(null, { status, headers: fields });
/** A mirror by this clock, without jitter. */
function mirrorBy(clock, options = {}) {
  return new RateLimitMirror({ clock: () => clock.now, random: () => 0, jitter: 0, ...options });
}
/** Statuses, or the names of errors, of what has settled so far. */
function outcomes(calls) {
  const seen = calls.map(() => undefined);
  calls.forEach(async (call, place) => {
    seen[place] = await call.then(({ status }) => status, (error) => error.name ?? error);
  });
  return seen;
}

test("calls are sent one after another, and a refused one once more before the next", async (context) => {
  let [flights, most] = [0, 0];
  const statuses = [200, 429, 200, 200, 429, 429, 200];
  const served = [];
  const clock = Clock.install(context, async ({ url }) => {
    most = Math.max(most, (flights += 1));
    await clock.after(10);
    flights -= 1;
    served.push(url.at(-1));
    return told(statuses.shift(), { "retry-after": "0" });
  });
  const mirror = mirrorBy(clock);
  const seen = outcomes([1, 2, 3, 4].map((call) => mirror.fetch(`${URL}${call}`)));
  await clock.pass(1_000);
  assert.deepEqual([seen, most, served.join("")], [[200, 200, 200, 429], 1, "122344"]);
});

test("a wait of an hour is waited for by whoever says so", async (context) => {
  const hour = told(429, { "retry-after": "3600" });
  const clock = Clock.install(context, () => (clock.sent.length === 1 ? hour : told(200)));
  const seen = outcomes([mirrorBy(clock).fetch(URL, { maxWait: Infinity })]);
  await clock.pass(3_599_000);
  assert.equal(clock.sent.length, 1);
  await clock.pass(1_000);
  assert.deepEqual([seen, clock.sent], [[200], [0, 3_600_000]]);
});

test("by default a call waits for a minute at most", async (context) => {
  const refusals = [{ "retry-after": "2592000" }, { "retry-after": "121" }, { ratelimit: '"api";r=0;t=2592000' }];
  for (const fields of refusals) {
    const clock = Clock.install(context, () => told(429, fields));
    const mirror = mirrorBy(clock);
    const seen = outcomes([mirror.fetch(URL)]);
    await clock.pass(60_000);
    const later = outcomes([mirror.fetch(URL)]);
    await clock.pass(60_000);
    assert.deepEqual([...seen, ...later], [429, "TimeoutError"], JSON.stringify(fields));
    assert.equal(clock.timers, 0);
  }
  for (const status of [200, 503]) {
    const clock = Clock.install(context);
    const mirror = mirrorBy(clock);
    mirror.record(told(status, { ratelimit: '"api";r=0;t=61', "retry-after": "61" }));
    const seen = outcomes([mirror.fetch(URL)]);
    await clock.pass(0);
    assert.deepEqual([seen, clock.sent], [["TimeoutError"], []], `${status}`);
  }
});

test("a call that was due while the machine slept is sent soon after", async (context) => {
  const clock = Clock.install(context);
  let slept = 0;
  const mirror = mirrorBy(clock, { today: () => clock.now + slept, maxWait: Infinity });
  mirror.record(told(429, { "retry-after": "1800" }));
  const seen = outcomes([mirror.fetch(URL)]);
  let listens = 0;
  mirror.subscribe(() => (listens += 1));
  await clock.pass(61_000);
  slept = 3_600_000;
  listens = 0;
  await clock.pass(1_000);
  assert.ok(listens > 0 && mirror.passes(), "a listener hears of it");
  await clock.pass(9_000);
  assert.deepEqual([seen, clock.sent.length], [[200], 1]);
});

test("a call is answered by no cache of the browser, unless the caller says so", async (context) => {
  const asked = [];
  const clock = Clock.install(context, ({ cache }) => (asked.push(cache), told(200)));
  const mirror = mirrorBy(clock);
  await mirror.fetch(URL);
  await mirror.fetch(new Request(URL));
  await mirror.fetch(new Request(URL, { cache: "reload" }));
  await mirror.fetch(URL, { cache: "default" });
  assert.deepEqual(asked, ["no-store", "no-store", "reload", "default"]);
});

test("a refusal from a cache is not waited for", async (context) => {
  const clock = Clock.install(context, () => told(429, { "retry-after": "30", age: "1500" }));
  const seen = outcomes([mirrorBy(clock).fetch(URL)]);
  await clock.pass(60_000);
  assert.deepEqual([seen, clock.sent], [[429], [0]]);
});

test("a refusal whose body has failed is sent again all the same", async (context) => {
  const torn = () => new ReadableStream({ start: (body) => body.error(new Error("torn")) });
  const refusal = () => new Response(torn(), { status: 429, headers: { "retry-after": "0" } });
  const clock = Clock.install(context, () => (clock.sent.length === 1 ? refusal() : told(200)));
  const seen = outcomes([mirrorBy(clock).fetch(URL)]);
  await clock.pass(1_000);
  assert.deepEqual(seen, [200]);
});

test("a fraction of a millisecond is waited for, too", async (context) => {
  const clock = Clock.install(context);
  clock.now = 0.25;
  const mirror = mirrorBy(clock);
  mirror.record(told(429, { "retry-after": "1" }));
  clock.now = 0.75;
  void mirror.fetch(URL);
  await clock.pass(2_000);
  assert.ok(clock.sent[0] >= 1_000.25, `${clock.sent}`);
});

test("where nobody knows when a call passes the server is asked, after all that was told", async (context) => {
  const wallet = { ratelimit: '"wallet";r=0', "ratelimit-policy": '"wallet";q=0' };
  for (const [fields, cost, at] of [
    [wallet, 1, 30_000],
    [{ "x-ratelimit-remaining": "0", "x-ratelimit-reset": "40" }, 2, 40_000],
  ]) {
    const clock = Clock.install(context, () => told(200, wallet));
    const mirror = mirrorBy(clock);
    mirror.record(told(200, fields));
    mirror.record(told(503, { "retry-after": "30" }));
    void mirror.fetch(URL, { cost });
    await clock.pass(100_000);
    assert.deepEqual(clock.sent, [at]);
  }
});

test("a wait that another call has lengthened meanwhile is waited for", async (context) => {
  const clock = Clock.install(context);
  const mirror = mirrorBy(clock);
  mirror.record(told(429, { "retry-after": "1" }));
  void mirror.fetch(URL);
  await clock.pass(500);
  mirror.record(told(429, { "retry-after": "5" }));
  await clock.pass(10_000);
  assert.deepEqual(clock.sent, [5_500]);
});

test("each wait is lengthened at random", async (context) => {
  const clock = Clock.install(context);
  const mirror = mirrorBy(clock, { random: () => 0.5, jitter: 800 });
  void mirror.fetch(URL);
  await clock.pass(100);
  mirror.record(told(429, { "retry-after": "1" }));
  void mirror.fetch(URL);
  await clock.pass(5_000);
  assert.deepEqual(clock.sent, [0, 1_500], "what does not wait is not late");
});

test("an abort ends a wait at once, is no failure, and lets the next one go", async (context) => {
  const clock = Clock.install(context);
  const mirror = mirrorBy(clock);
  mirror.record(told(429, { "retry-after": "3" }));
  const [control, queued, request] = [new AbortController(), new AbortController(), new AbortController()];
  const seen = outcomes([
    mirror.fetch(URL, { signal: control.signal }),
    mirror.fetch(URL, { signal: queued.signal }),
    mirror.fetch(new Request(URL, { signal: request.signal })),
    mirror.fetch(URL),
  ]);
  await clock.pass(100);
  for (const [place, one] of [control, queued, request].entries()) one.abort(`enough ${place}`);
  await clock.pass(0);
  assert.deepEqual(seen, ["enough 0", "enough 1", "enough 2", undefined]);
  assert.equal(mirror.wait(), 2_900);
  await clock.pass(5_000);
  assert.deepEqual([seen[3], clock.sent], [200, [3_000]]);
  const seenToo = outcomes([mirror.fetch(URL, { signal: AbortSignal.abort("before") })]);
  await clock.pass(0);
  assert.deepEqual([seenToo, clock.sent.length], [["before"], 1]);
});

test("a call that is aborted under way is no failure, but may have been charged", async (context) => {
  const clock = Clock.install(context, () => new Promise(() => undefined));
  const mirror = mirrorBy(clock);
  mirror.record(told(200, { ratelimit: '"api";r=3;t=9' }));
  const control = new AbortController();
  const seen = outcomes([mirror.fetch(URL, { signal: control.signal, cost: 2 })]);
  await clock.pass(100);
  control.abort("enough");
  await clock.pass(0);
  assert.deepEqual([seen, mirror.balance(), mirror.wait()], [["enough"], 1, 0]);
});

test("a request with a body is sent once more, one with a stream is not", async (context) => {
  const bodies = [];
  const clock = Clock.install(context, async (request) => {
    bodies.push(await request.text());
    return bodies.length % 2 === 1 ? told(429, { "retry-after": "1" }) : told(200);
  });
  const mirror = mirrorBy(clock);
  const seen = outcomes([mirror.fetch(new Request(URL, { method: "POST", body: "hello" }))]);
  await clock.pass(5_000);
  assert.deepEqual([seen, bodies], [[200], ["hello", "hello"]]);
  const stream = new Blob(["once"]).stream();
  const streamed = outcomes([mirror.fetch(URL, { method: "POST", body: stream, duplex: "half" })]);
  await clock.pass(5_000);
  assert.deepEqual([streamed, bodies.length], [[429], 3]);
});

test("a call that passes overtakes one that has to wait, until that one's first instant", async (context) => {
  let left = 5;
  const clock = Clock.install(context, ({ url }) => {
    left -= Number(url.at(-1));
    return told(200, { "ratelimit-policy": '"api";q=9;w=9', ratelimit: `"api";r=${left};t=1` });
  });
  const mirror = mirrorBy(clock);
  mirror.record(told(200, { "ratelimit-policy": '"api";q=9;w=9', ratelimit: '"api";r=5;t=1' }));
  const served = [];
  const send = (cost) => void mirror.fetch(`${URL}${cost}`, { cost }).then(() => served.push([cost, clock.now]));
  send(8);
  send(1);
  await clock.pass(9_999);
  assert.deepEqual(served, [[1, 0]]);
  left = 8;
  await clock.pass(1);
  send(1);
  await clock.pass(2_000);
  assert.deepEqual(served, [[1, 0], [8, 10_000], [1, 11_000]]);
});

test("a call that would wait for longer than it may is not sent, or resolves to its refusal", async (context) => {
  const clock = Clock.install(context, async () => {
    await clock.after(2_000);
    return told(429, { "retry-after": "60" });
  });
  const mirror = mirrorBy(clock, { maxWait: 5_000 });
  const seen = outcomes([mirror.fetch(URL), mirror.fetch(URL, { maxWait: 1_000 }), mirror.fetch(URL)]);
  await clock.pass(1_000);
  assert.deepEqual(seen, [undefined, "TimeoutError", undefined]);
  await clock.pass(1_000);
  assert.deepEqual([seen, clock.sent.length], [[429, "TimeoutError", "TimeoutError"], 1]);
  await clock.pass(100_000);
  assert.deepEqual(clock.timers, 0);
});

test("a failure rejects, is not repeated, and lets the next one wait", async (context) => {
  const clock = Clock.install(context, () => {
    if (clock.sent.length === 1) throw new TypeError("no network");
    return told(200);
  });
  const mirror = mirrorBy(clock);
  const seen = outcomes([mirror.fetch(URL), mirror.fetch(URL)]);
  await clock.pass(10_000);
  assert.deepEqual([seen, clock.sent], [["TypeError", 200], [0, 250]]);
});

test("a call that cannot be sent is neither a failure nor a charge", async (context) => {
  const clock = Clock.install(context);
  const mirror = mirrorBy(clock);
  mirror.record(told(200, { ratelimit: '"api";r=1;t=9' }));
  const used = new Request(URL, { method: "POST", body: "hello" });
  await used.text();
  const seen = outcomes([mirror.fetch(used)]);
  await clock.pass(0);
  assert.deepEqual([seen, mirror.balance(), mirror.wait()], [["TypeError"], 1, 0]);
});

test("what it sends is granted, whatever answers get lost", async (context) => {
  const random = randomFrom(3);
  const refused = [];
  const limits = [bucket("burst", 8, 250), bucket("day", 30, 1_000)];
  const clock = Clock.install(context, async ({ url }) => {
    const cost = Number(url.slice(URL.length));
    await clock.after(300 * random());
    const isGranted = limits.every((limit) => limit.has(cost, clock.now));
    if (isGranted) limits.forEach((limit) => limit.take(cost));
    else refused.push({ at: clock.now, cost });
    const ratelimit = limits.map((limit) => limit.told()).join();
    await clock.after(300 * random());
    if (random() < 0.2) throw new TypeError("the answer is lost");
    return told(isGranted ? 200 : 429, { ratelimit, "ratelimit-policy": limits.map((limit) => limit.policy).join() });
  });
  const mirror = new RateLimitMirror({ clock: () => clock.now, random, maxWait: Infinity });
  const calls = [outcomes([mirror.fetch(`${URL}1`)])];
  for (let call = 0; call < 300; call += 1) {
    await clock.pass(800 * random());
    const cost = 1 + Math.floor(6 * random());
    calls.push(outcomes([mirror.fetch(`${URL}${cost}`, { cost })]));
  }
  await clock.pass(3_600_000);
  const seen = calls.flat();
  assert.deepEqual(refused, []);
  assert.ok(seen.filter((status) => status === 200).length > 200, `${seen}`);
  assert.ok(seen.every((outcome) => outcome === 200 || outcome === "TypeError"));
});

/** A token bucket of a server, by the clock that is passed to it. */
function bucket(name, capacity, span) {
  let [left, at] = [capacity, 0];
  const refill = (now) => {
    [left, at] = [Math.min(capacity, left + (now - at) / span), now];
  };
  return {
    policy: `"${name}";q=${capacity};w=${Math.ceil((capacity * span) / 1000)}`,
    has: (cost, now) => (refill(now), left >= cost),
    take: (cost) => void (left -= cost),
    told: () => `"${name}";r=${Math.floor(left)};t=${Math.ceil(((1 - (left % 1)) * span) / 1000)}`,
  };
}
