// What the mirror knows from answers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { RateLimitMirror, RateLimitMirrors } from "../dist/index.js";

const answer = (status, fields) => ({ status, headers: new Headers(fields) });
const TODAY = "Wed, 01 Jan 2025 00:00:00 GMT";
/** A mirror at an instant that the test sets. */
function still(options = {}) {
  const clock = { now: 0 };
  const today = () => Date.parse(TODAY);
  return [new RateLimitMirror({ clock: () => clock.now, today, random: () => 0, ...options }), clock];
}
/** What a mirror knows after one answer. */
function after(status, fields, cost = 1) {
  const [mirror] = still();
  mirror.record(answer(status, fields), cost);
  return mirror;
}

test("it counts down to the next token, and to all of them", () => {
  const [mirror, clock] = still();
  assert.deepEqual(mirror.known(), { balance: undefined, passes: true, seconds: 0 });
  mirror.record(answer(200, { "ratelimit-policy": '"api";q=10;w=60', ratelimit: '"api";r=0;t=6' }));
  assert.deepEqual(mirror.known(), { balance: 0, passes: false, seconds: 6 });
  assert.equal(mirror.known(), mirror.known(), "the same object while nothing changes");
  clock.now = 5_999;
  assert.equal(mirror.passes(), false);
  clock.now = 6_000;
  assert.deepEqual(mirror.known(), { balance: 1, passes: true, seconds: 0 });
  assert.equal(mirror.wait(2), 60_000);
  assert.equal(mirror.wait(11), Infinity, "more than the quota");
  clock.now = 66_000;
  assert.equal(mirror.balance(), 10);
});

test("of several limits each must have enough", () => {
  const policies = '"a, b";q=5;w=1, "c";q=9;w=9';
  const mirror = after(200, { "ratelimit-policy": policies, ratelimit: '"a, b";r=4;t=1;pk=:aGk=:, "c";r=2;t=3' });
  assert.deepEqual([mirror.balance(), mirror.passes(2), mirror.wait(3)], [2, true, 3_000]);
});

test("what stands in quotes is no parameter, and a field that is wrong somewhere is ignored as a whole", () => {
  const balance = (ratelimit) => after(200, { ratelimit }).balance();
  assert.equal(balance('"api";r=0;t=60;comment="a;r=9"'), 0);
  assert.equal(balance('"r=9;\\"r=8";r=1'), 1);
  assert.equal(balance('api;r=3'), 3, "a name without quotes, as in older drafts");
  assert.equal(balance('"a";r=2, "b";r=-2'), 0);
  for (const wrong of ['"a";r=5, "b";r=', '"a";r=5,', '"a";r=5 "b"', '"a";r=0x5', '"a";R=5', '"limit=9, remaining=9']) {
    assert.equal(balance(wrong), undefined, wrong);
  }
});

test("older fields are read, and absolute ones by the server's clock", () => {
  const absolute = `${Date.parse(TODAY) / 1000 + 30}`;
  const forms = [
    { ratelimit: "limit=10, remaining=5, reset=30" },
    { ratelimit: "limit = 10, remaining = 5, reset = 30" },
    { "ratelimit-limit": "10, 10;w=60", "ratelimit-remaining": "5", "ratelimit-reset": "30" },
    { "x-ratelimit-limit": "10", "x-ratelimit-remaining": "5.0", "x-ratelimit-reset": "30" },
    { "x-ratelimit-limit": "10, 20", "x-ratelimit-remaining": "7, 5", "x-ratelimit-reset": "20, 30" },
    { "x-ratelimit-limit": "10", "x-ratelimit-remaining": "5", "x-ratelimit-reset": absolute, date: TODAY },
    { "x-ratelimit-limit": "10", "x-ratelimit-remaining": "5", "x-ratelimit-reset": absolute },
  ];
  for (const fields of forms) {
    const mirror = after(200, fields);
    assert.deepEqual([mirror.balance(), mirror.wait(5), mirror.wait(6)], [5, 0, 30_000], JSON.stringify(fields));
  }
});

test("of what is told twice the lesser balance counts, and nonsense after a refusal is no leave to go", () => {
  for (const remaining of ["0, 0", "0.0", " 0", "4, 0", "-2"]) {
    const mirror = after(200, { "x-ratelimit-remaining": remaining, "x-ratelimit-reset": "30" });
    assert.equal(mirror.wait(), 30_000, remaining);
  }
  for (const remaining of ["none", "9 left", "0x9", ""]) {
    assert.equal(after(429, { "x-ratelimit-remaining": remaining }).passes(), false, remaining);
  }
});

test("a date by the client's own clock comes no sooner than a guess", () => {
  assert.equal(after(429, { "retry-after": "Wed, 01 Jan 2025 00:00:00 GMT" }).wait(), 250);
});

test("failures back off, longer each time, and at random", () => {
  for (const status of [500, 502, 503, 504]) assert.equal(after(status, {}).wait(), 250, `${status}`);
  const [mirror, clock] = still();
  const waits = [250, 500, 1_000];
  for (const wait of waits) {
    mirror.failed();
    assert.equal(mirror.wait(), wait);
  }
  for (let times = 0; times < 20; times += 1) mirror.failed();
  assert.equal(mirror.wait(), 30_000, "half of a minute at least");
  mirror.record(answer(200, {}));
  assert.equal(mirror.wait(), 0);
  const [late] = still({ random: () => 0.5 });
  late.failed();
  assert.equal(late.wait(), 375);
  clock.now = 1;
});

test("a longer wait that was told outlasts what comes after", () => {
  for (const status of [429, 503]) {
    const [mirror, clock] = still();
    const [first, second] = [mirror.sent(), mirror.sent()];
    first.answered(answer(status, { "retry-after": "60" }));
    second.lost();
    mirror.failed();
    for (const other of [500, 502, 503]) mirror.record(answer(other, {}));
    assert.ok(mirror.wait() >= 60_000, `${status}`);
    clock.now = 59_999;
    assert.equal(mirror.passes(), false);
  }
});

test("a call without an answer counts as charged until a later one is told what is left", () => {
  const [mirror, clock] = still();
  const told = (left) => answer(200, { "ratelimit-policy": '"api";q=3;w=60', ratelimit: `"api";r=${left};t=20` });
  mirror.record(told(3));
  const lost = mirror.sent(3);
  assert.deepEqual([mirror.balance(), mirror.passes(1)], [0, false], "while it is under way");
  lost.lost();
  clock.now = 500;
  assert.deepEqual([mirror.balance(), mirror.passes(3), mirror.wait(3)], [0, false, 59_500]);
  mirror.record(told(2));
  assert.equal(mirror.passes(2), true);
  mirror.record(answer(200, {}), 2);
  assert.equal(mirror.balance(), 0, "nor does this answer tell what is left");
});

test("of calls that were under way together the answer counts that leaves less, in whatever order they arrive", () => {
  const told = (left) => answer(200, { ratelimit: `"api";r=${left};t=9` });
  const [mirror] = still();
  const [first, second] = [mirror.sent(), mirror.sent()];
  second.answered(told(3));
  assert.equal(mirror.balance(), 2, "the first may have been decided later");
  first.answered(told(4));
  assert.equal(mirror.balance(), 3);
  mirror.record(told(5));
  assert.equal(mirror.balance(), 5, "this one was sent after both");
});

test("a refusal tells of its cost and of less, not of more", () => {
  const [mirror, clock] = still();
  mirror.record(answer(429, { "retry-after": "1" }), 2);
  assert.deepEqual([mirror.wait(1), mirror.wait(2), mirror.wait(50)], [1_000, 1_000, Infinity]);
  clock.now = 1_000;
  assert.deepEqual([mirror.passes(1), mirror.passes(2), mirror.passes(50)], [true, true, false]);
  assert.equal(mirror.known(50).seconds, Infinity);
  mirror.record(answer(200, {}), 2);
  assert.equal(mirror.passes(50), true, "nothing that was told forbids it any more");
});

/** By which caches say that they have answered. */
const STORED = [
  { age: "1500" }, { age: "1" }, { age: "0, 7" }, { age: " 1500" }, { age: "old" },
  { "cache-status": "edge; hit; ttl=9" }, { "x-cache": "HIT" }, { "x-cache": "MISS, HIT", age: "0" },
  { "x-cache": "TCP_MEM_HIT from edge" },
  { "x-cache": "Hit from cloudfront" }, { "cf-cache-status": "HIT" },
];

test("an answer from a cache tells nothing, because the server gave it to another call", () => {
  const fields = [
    { ratelimit: '"api";r=0;t=1800', "ratelimit-policy": '"api";q=5;w=9000' },
    { "x-ratelimit-limit": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800" },
    { "retry-after": "1800" },
  ];
  for (const stored of STORED) {
    for (const told of fields) {
      for (const status of [200, 304, 403, 429, 503]) {
        const known = after(status, { ...told, ...stored }).known();
        const at = JSON.stringify({ status, stored, told });
        assert.deepEqual(known, { balance: undefined, passes: true, seconds: 0 }, at);
      }
    }
  }
});

test("nor does it end a refusal, a pause or a guess of its own server, and its call counts as charged", () => {
  const full = { ratelimit: '"api";r=5;t=1', "ratelimit-policy": '"api";q=5;w=5' };
  const before = [
    [429, { "retry-after": "60" }, 60_000], [503, { "retry-after": "60" }, 60_000], [500, {}, 250],
    [200, { ratelimit: '"api";r=0;t=60' }, 60_000],
  ];
  for (const [status, fields, wait] of before) {
    for (const told of [{}, full]) {
      const mirror = after(status, fields);
      for (const stored of STORED) mirror.sent(0).answered(answer(200, { ...told, ...stored }));
      assert.equal(mirror.wait(), wait, `${status}`);
    }
  }
  const mirror = after(200, full);
  mirror.record(answer(200, { ...full, age: "9" }), 2);
  assert.equal(mirror.balance(), 3);
});

test("an answer that a cache has passed on from the server is the server's", () => {
  const fields = { ratelimit: '"api";r=3;t=1' };
  for (const passed of [
    {}, { age: "0" }, { age: "0, 0" }, { "cache-status": "edge; fwd=miss" }, { "x-cache": "MISS, MISS" },
    { "cf-cache-status": "DYNAMIC" }, { "x-cache": "RefreshHit from cloudfront" }, { "x-cache": "white" },
  ]) {
    assert.equal(after(200, { ...fields, ...passed }).balance(), 3, JSON.stringify(passed));
  }
});

test("the time in which the machine slept counts, and a clock that is set back does not", () => {
  const clocks = { now: 0, today: Date.parse(TODAY) };
  const options = { clock: () => clocks.now, today: () => clocks.today, random: () => 0 };
  const pass = (awake, asleep = 0) => ((clocks.now += awake), (clocks.today += awake + asleep));
  for (const [status, fields, seconds] of [
    [429, { "retry-after": "1800" }, 1_739],
    [503, { "retry-after": "1800" }, 1_739],
    [200, { ratelimit: '"api";r=0;t=1800' }, 1_739],
    [200, { "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800" }, 1_739],
  ]) {
    const mirror = new RateLimitMirror(options);
    mirror.record(answer(status, fields));
    pass(61_000);
    clocks.today -= 3_600_000;
    assert.equal(mirror.known().seconds, seconds, "somebody has set the clock back");
    pass(0, 600_000);
    assert.equal(mirror.known().seconds, seconds - 600);
    pass(0, 3_600_000);
    assert.ok(mirror.passes(), `${status} ${JSON.stringify(fields)}`);
  }
  const refused = new RateLimitMirror(options);
  refused.record(answer(429, { "retry-after": "60" }));
  for (let look = 1; look < 100; look += 1) {
    pass(100, look % 2 === 0 ? 400 : -400);
    assert.equal(refused.wait(), 60_000 - look * 100, "clocks that are awake differ, too");
  }
});

test("less than was refused passes at once where all limits were told, and not where one is not", () => {
  const fields = { "retry-after": "9", ratelimit: '"a";r=3;t=2' };
  const [all] = [after(429, { ...fields, "ratelimit-policy": '"a";q=9;w=9' }, 5)];
  assert.deepEqual([all.wait(3), all.wait(4), all.wait(5)], [0, 2_000, 9_000]);
  const one = after(429, { ...fields, "ratelimit-policy": '"a";q=9;w=9, "b";q=2;w=9' }, 5);
  assert.deepEqual([one.wait(3), one.wait(5)], [9_000, 9_000]);
});

test("a key has one mirror, and only those in use are kept beyond the size", () => {
  const mirrors = new RateLimitMirrors({ size: 2, clock: () => 0 });
  const [a, b] = [mirrors.of("a"), mirrors.of("b")];
  const leave = b.subscribe(() => undefined);
  assert.equal(mirrors.of("a"), a);
  mirrors.of("c");
  assert.equal(mirrors.of("b"), b, "somebody listens");
  assert.notEqual(mirrors.of("a"), a, "the least recently used of the idle ones");
  leave();
  const refused = mirrors.of("refused");
  refused.record(answer(429, { "retry-after": "9" }));
  for (const key of ["d", "e", "f"]) mirrors.of(key);
  assert.equal(mirrors.of("refused"), refused, "its wait is not forgotten");
  const told = mirrors.of("told");
  told.record(answer(200, { ratelimit: '"l";r=3;t=60', "ratelimit-policy": '"l";q=10;w=600' }));
  for (const key of ["g", "h", "i"]) mirrors.of(key);
  assert.ok(!mirrors.of("told").passes(5), "nor that of a call which costs more");
  assert.notEqual(mirrors.of("b"), b);
});
