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

test("ten thousand random calls, and two limits asked together, come to the same, bit for bit", async () => {
  const scenes = JSON.parse(await readFile(new URL("steps.json", built), "utf8"));
  const differing = await browser.run((scenes) => {
    const same = (one, other) => {
      if (typeof one === "number") return Object.is(one, other);
      return one.length === other.length && other.every((value, place) => Object.is(value, one[place]));
    };
    return scenes.flatMap(([scene, { trials, ...found }], place) => {
      const inBrowser = tollgate.record(scene);
      const unlike = (one, other, of) => Object.keys(other).filter((name) => !same(one[name], other[name])).map((name) => `${name} of ${of}`);
      const unlikeTrials = trials.flatMap((trial, side) => unlike(inBrowser.trials[side], trial, `trial ${side} of scene ${place}`));
      return [...unlike(inBrowser, found, `scene ${place}`), ...unlikeTrials];
    });
  }, scenes);
  assert.deepEqual(differing, []);
});

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
