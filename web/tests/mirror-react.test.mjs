// The mirror in React, in a browser.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { Browser } from "./browser.mjs";

let browser, script;
before(async () => {
  const { outputFiles } = await build({
    stdin: {
      resolveDir: new URL("..", import.meta.url).pathname,
      contents: `
        import { createElement } from "react";
        import { createRoot } from "react-dom/client";
        import { RateLimitMirror } from "./dist/index.js";
        import { useRateLimit } from "./dist/mirror-react.js";
        window.mirror = new RateLimitMirror();
        function Send() {
          const { passes, seconds } = useRateLimit(window.mirror);
          return createElement("button", { disabled: !passes }, passes ? "Send" : \`in \${seconds} s\`);
        }
        window.root = createRoot(document.body);
        window.root.render(createElement(Send));`,
    },
    bundle: true,
    format: "iife",
    define: { "process.env.NODE_ENV": '"production"' },
    write: false,
  });
  script = outputFiles[0].text;
  browser = await Browser.start();
});
after(() => browser?.end());

test("a component is drawn anew with each response and each second", async () => {
  await browser.open("about:blank");
  const seen = await browser.run(async (script) => {
    const seen = [];
    const refusal = { status: 429, headers: new Headers({ "retry-after": "2" }) };
    const changed = new Promise((done) => {
      new MutationObserver(() => {
        const text = document.body.textContent;
        if (text !== "" && seen.at(-1) !== text) seen.push(text);
        if (seen.length === 1) setTimeout(() => mirror.record(refusal));
        if (seen.length === 4) done();
      }).observe(document.body, { childList: true, subtree: true, characterData: true });
    });
    window.eval(script);
    await changed;
    return seen;
  }, script);
  assert.deepEqual(seen, ["Send", "in 2 s", "in 1 s", "Send"]);
});

test("a component that is gone leaves no listener and no timer", async () => {
  await browser.open("about:blank");
  const timers = await browser.run(async (script) => {
    const running = new Set();
    const { setTimeout: set, clearTimeout: clear } = window;
    const drawn = new Promise((done) => new MutationObserver(done).observe(document.body, { childList: true }));
    window.eval(script);
    await drawn;
    while (mirror.isIdle) await new Promise((over) => set(over));
    // From here on all timers are those of the mirror.
    window.setTimeout = (run, span) => {
      const number = set(run, span);
      running.add(number);
      return number;
    };
    window.clearTimeout = (number) => {
      running.delete(number);
      clear(number);
    };
    const refusal = { status: 429, headers: new Headers({ "retry-after": "60" }) };
    mirror.record(refusal);
    const before = running.size;
    root.unmount();
    while (running.size > 0) await new Promise((over) => set(over));
    mirror.record(refusal);
    return [before, running.size];
  }, script);
  assert.deepEqual(timers, [1, 0]);
});
