// The mirror says what the server would say, and never "go" before it.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { Browser } from "./browser.mjs";

const built = new URL("../../target/web/", import.meta.url);
const { RateLimitMirror } = await import(new URL("mirror.js", built));

const answer = (status, fields) => ({ status, headers: new Headers(fields) });
/** A mirror at an instant that the test sets. */
function still(options = {}) {
  const clock = { now: 0 };
  return [new RateLimitMirror({ clock: () => clock.now, random: () => 0, ...options }), clock];
}

test("it never says that a call passes before the server would grant it", async () => {
  const stories = JSON.parse(await readFile(new URL("fields.json", built), "utf8"));
  const said = { go: 0, granted: 0, asked: 0, early: [] };
  for (const steps of stories) {
    const [mirror, clock] = still();
    for (const { at, cost, status, fields, asks } of steps) {
      const headers = [...fields, ["date", new Date(Math.floor(at / 1e6) * 1000).toUTCString()]];
      // The answer arrives a while after the decision.
      clock.now = at / 1e3 + (at % 7);
      mirror.record(answer(status, headers), cost);
      for (const ask of asks) {
        if (ask.at / 1e3 < clock.now) continue;
        clock.now = ask.at / 1e3;
        said.asked += 1;
        said.granted += ask.passes;
        said.go += mirror.passes(ask.cost);
        if (mirror.passes(ask.cost) && !ask.passes) said.early.push({ status, cost, fields, after: ask.at - at, asked: ask.cost });
      }
    }
  }
  assert.deepEqual(said.early, []);
  assert.ok(said.asked > 40_000, `${said.asked} were asked`);
  assert.ok(said.go > said.granted * 0.6, `it says "go" ${said.go} times of ${said.granted}`);
});

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
  const [mirror] = still();
  mirror.record(answer(200, { "ratelimit-policy": '"a, b";q=5;w=1, "c";q=9;w=9', ratelimit: '"a, b";r=4;t=1;pk=:aGk=:, "c";r=2;t=3' }));
  assert.deepEqual([mirror.balance(), mirror.passes(2), mirror.wait(3)], [2, true, 3_000]);
});

test("older fields are read, and absolute ones by the server's clock", () => {
  const date = "Wed, 01 Jan 2025 00:00:00 GMT";
  const forms = [
    { ratelimit: "limit=10, remaining=5, reset=30" },
    { "ratelimit-limit": "10", "ratelimit-remaining": "5", "ratelimit-reset": "30" },
    { "x-ratelimit-limit": "10", "x-ratelimit-remaining": "5", "x-ratelimit-reset": "30" },
    { "x-ratelimit-limit": "10", "x-ratelimit-remaining": "5", "x-ratelimit-reset": `${Date.parse(date) / 1000 + 30}`, date },
  ];
  for (const fields of forms) {
    const [mirror] = still();
    mirror.record(answer(200, fields));
    assert.deepEqual([mirror.balance(), mirror.wait(5), mirror.wait(6)], [5, 0, 30_000], JSON.stringify(fields));
  }
});

test("a refusal is waited for: by seconds, by a date, or longer each time", () => {
  const [mirror, clock] = still();
  mirror.record(answer(429, { "retry-after": "7" }), 3);
  assert.equal(mirror.wait(), 7_000);
  mirror.record(answer(503, { "retry-after": "Wed, 01 Jan 2025 00:00:09 GMT", date: "Wed, 01 Jan 2025 00:00:00 GMT" }));
  assert.equal(mirror.wait(), 9_000);
  mirror.record(answer(429, {}));
  assert.equal(mirror.wait(), 250);
  mirror.record(answer(429, {}));
  assert.equal(mirror.wait(), 500);
  for (let times = 0; times < 20; times += 1) mirror.failed();
  assert.equal(mirror.wait(), 30_000, "half of a minute at least");
  mirror.record(answer(200, {}));
  assert.equal(mirror.wait(), 0);
  clock.now = 1;
});

test("calls of one mirror are sent one after another, and a refused one once more", async () => {
  let [flights, most] = [0, 0];
  const statuses = [200, 429, 200, 200];
  const server = createServer((_, response) => void response.writeHead(statuses.shift() ?? 500, { "retry-after": "0" }).end());
  const send = globalThis.fetch;
  globalThis.fetch = (...request) => {
    most = Math.max(most, (flights += 1));
    return send(...request).finally(() => (flights -= 1));
  };
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const mirror = new RateLimitMirror({ jitter: 0 });
  const got = await Promise.all([1, 2, 3].map(() => mirror.fetch(url)));
  assert.deepEqual([got.map(({ status }) => status), most, statuses], [[200, 200, 200], 1, []]);
  globalThis.fetch = send;
  server.closeAllConnections();
  await new Promise((closed) => server.close(closed));
});

let browser;
before(async () => (browser = await Browser.start()));
after(() => browser.end());

test("a component is drawn anew with each response and each second", async () => {
  const { outputFiles } = await build({
    stdin: {
      resolveDir: new URL("..", import.meta.url).pathname,
      contents: `
        import { createElement } from "react";
        import { createRoot } from "react-dom/client";
        import { RateLimitMirror } from "./ts/mirror";
        import { useRateLimit } from "./ts/mirror-react";
        window.mirror = new RateLimitMirror();
        function Send() {
          const { passes, seconds } = useRateLimit(window.mirror);
          return createElement("button", { disabled: !passes }, passes ? "Send" : \`in \${seconds} s\`);
        }
        createRoot(document.body).render(createElement(Send));`,
    },
    bundle: true,
    format: "iife",
    define: { "process.env.NODE_ENV": '"production"' },
    write: false,
  });
  await browser.open("about:blank");
  const seen = await browser.run(async (script) => {
    const seen = [];
    const changed = new Promise((done) => {
      new MutationObserver(() => {
        const text = document.body.textContent;
        if (text !== "" && seen.at(-1) !== text) seen.push(text);
        if (seen.length === 1) setTimeout(() => mirror.record({ status: 429, headers: new Headers({ "retry-after": "2" }) }));
        if (seen.length === 4) done();
      }).observe(document.body, { childList: true, subtree: true, characterData: true });
    });
    window.eval(script);
    await changed;
    return seen;
  }, outputFiles[0].text);
  assert.deepEqual(seen, ["Send", "in 2 s", "in 1 s", "Send"]);
});
