// The core in a browser decides as the core on this machine.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { Browser } from "./browser.mjs";

const built = new URL("../../target/web/", import.meta.url);
let browser;

before(async () => {
  browser = await Browser.start();
  await browser.open("about:blank");
  await browser.load(`${await readFile(new URL("core.js", built), "utf8")}; window.tollgate = tollgate;`);
});
after(() => browser.end());

test("ten thousand random calls come to the same, bit for bit", async () => {
  const scenes = JSON.parse(await readFile(new URL("steps.json", built), "utf8"));
  assert.equal(scenes.reduce((calls, [, found]) => calls + found.answers.length, 0), 10_000);
  const differing = await browser.run((scenes) => {
    const same = (one, other) => {
      if (typeof one === "number") return Object.is(one, other);
      return one.length === other.length && other.every((value, place) => Object.is(value, one[place]));
    };
    return scenes.flatMap(([scene, found], place) => {
      const { span, instants, trials } = tollgate.record(scene);
      const inBrowser = { span, instants, ...trials[0] };
      return Object.keys(found).filter((name) => !same(inBrowser[name], found[name])).map((name) => `${name} of scene ${place}`);
    });
  }, scenes);
  assert.deepEqual(differing, []);
});

// The same as in `cli/tests/simulate/answers.rs` and `presets.rs`, where each figure has its reason.
const UPLOADS = [["kind", "stepped_bucket"], ["rate", "5"], ["per", "10s"], ["capacity", "20"]];
const TEN = [["kind", "token_bucket"], ["rate", "10"], ["per", "1m"]];
const BUDGET = [["kind", "sliding_window"], ["rate", "10"], ["per", "1h"]];
const known = [
  ["a grid of steps is kept", UPLOADS, { csv: "time,cost\n0,5\n10,18\n20,7\n" }, [3, 0, 0]],
  ["a millionth too much is refused", UPLOADS, { csv: "time,cost\n0,5\n10,18\n20,7.000001\n" }, [2, 1, 0]],
  ["only whole periods count", UPLOADS, { csv: "time,cost\n0,15\n15,10\n20,5\n29,1\n30,5\n" }, [4, 1, 0]],
  ["the next of ten a minute is there after 6 s", TEN, { csv: "time,cost\n0,10\n0,1\n5.999999,1\n6,1\n" }, [2, 2, 0]],
  ["more than the capacity is impossible", TEN, { csv: "time,cost\n0,11\n0,10\n0,11\n" }, [1, 0, 2]],
  ["a flood gets fifty at once, then one in six", [["kind", "token_bucket"], ["rate", "10"], ["per", "1s"], ["capacity", "50"]],
    { traffic: ["burst size=50 every=1m for=1s", "constant rate=60 per=1s for=10s"] }, [149, 501, 0]],
  ["a window lets two hundred through around its edge", [["kind", "fixed_window"], ["rate", "100"], ["per", "1m"], ["start", "0s"]],
    { traffic: ["burst size=100 every=1h from=59500ms", "burst size=100 every=1h from=60500ms"] }, [200, 0, 0]],
  ["what was not used is granted again, and of a dead client after its lapse", BUDGET,
    { csv: "time,cost\n0,10\n2.999999,1\n3,6\n12.999999,1\n13,6\n16,2\n", work: "3s", used: "4", dies: "3", lapses_after: "10s" }, [4, 2, 0]],
  ["a wallet spends what it holds and no more", [["kind", "wallet"], ["overdraft", "2"]],
    { csv: "time,cost\n0,3\n1,3\n2,2\n9,1\n", funds: "5" }, [3, 1, 0]],
];
for (const [fact, words, calls, figures] of known) {
  test(fact, async () => {
    const scene = { limits: [{ name: "any", words, global: false }], ...calls };
    const found = await browser.run((scene) => {
      const { granted, refused, impossible } = tollgate.record(scene).trials[0].figures;
      return [granted, refused, impossible];
    }, scene);
    assert.deepEqual(found, figures);
  });
}

test("a recording is made in slices, and comes to the same", async () => {
  const limit = (kind) => ({ name: kind, words: [["kind", kind], ["rate", "500"], ["per", "1s"]], global: false });
  const scene = { limits: [limit("token_bucket"), limit("sliding_window")], traffic: ["constant rate=1000 per=1s for=10s"] };
  const [pauses, isSame] = await browser.run((scene) => {
    const text = (record) => JSON.stringify(record, (_, value) => (ArrayBuffer.isView(value) ? [...value] : value));
    const slices = tollgate.recorded(scene);
    for (let pauses = 0; ; pauses += 1) {
      const { done, value } = slices.next();
      if (done) return [pauses, text(value) === text(tollgate.record(scene))];
    }
  }, scene);
  assert.equal(pauses, 200, "two limits, a hundred slices each of a hundred calls, and one that finds no more");
  assert.ok(isSame);
});

test("faults name the place that has them", async () => {
  const scene = {
    limits: [{ name: "any", words: [["kind", "token_bucket"], ["rate", "0"], ["per", "1\0s"]] }],
    traffic: ["burst size=1 every=1s", "st\0eady rate=1 per=1s"],
    work: "long",
    used: "-1",
    dies: "0",
    lapses_after: "0s",
  };
  const places = await browser.run((scene) => {
    try {
      tollgate.record(scene);
    } catch (error) {
      return error.faults.map((fault) => fault.place);
    }
  }, scene);
  assert.deepEqual(places, ["work", "used", "dies", "lapses_after", "limits.0.rate", "limits.0.per", "traffic.1"]);
});
