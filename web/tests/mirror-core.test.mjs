// The mirror beside the core, over random calls: what it lets go the server grants, whatever answers get lost.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { RateLimitMirror } from "../dist/index.js";
import { randomFrom } from "./random.mjs";

const stories = JSON.parse(await readFile(new URL("../../target/web/fields.json", import.meta.url), "utf8"));
const COSTS = [1, 2, 3, 4, 5, 6, 7, 12];

test("it never says that a call passes before the server would grant it", () => {
  // Each answer arrives in a moment.
  const said = tell(stories, (at) => ({ sent: at, ended: at + (at % 7), isLost: false }));
  assert.deepEqual(said.early, []);
  assert.ok(said.asked > 100_000, `${said.asked} were asked`);
  assert.ok(said.go > said.granted * 0.75, `it says "go" ${said.go} times of ${said.granted}`);
});

test("it says so neither if answers get lost", () => {
  const random = randomFrom(1);
  const said = tell(certain, (at, next) => {
    return { sent: at, ended: Math.min(at + 900 * random(), next), isLost: random() < 0.3 };
  });
  assert.deepEqual(said.early, []);
  assert.ok(said.go > said.granted * 0.55, `it says "go" ${said.go} times of ${said.granted}`);
});

test("nor if calls are under way together, and their answers arrive in any order", () => {
  const random = randomFrom(2);
  const said = tell(certain, (at) => {
    return { sent: at - 4_000 * random(), ended: at + 4_000 * random(), isLost: random() < 0.1 };
  });
  assert.deepEqual(said.early, []);
  assert.ok(said.go > said.granted * 0.25, `it says "go" ${said.go} times of ${said.granted}`);
});

/** Stories in which nobody takes what no answer tells of. */
const certain = stories.filter((story) => !story.has_debts);

/** Tells a mirror of each story, whose calls travel as said, and asks it at each instant. */
function tell(stories, travel) {
  const said = { go: 0, granted: 0, asked: 0, early: [] };
  for (const story of stories) {
    const clock = { now: 0 };
    const mirror = new RateLimitMirror({ clock: () => clock.now, random: () => 0 });
    const known = { isTold: false, isCertain: true };
    const events = story.steps.flatMap((step, place) => {
      const next = (story.steps[place + 1]?.at ?? Infinity) / 1e3;
      return eventsOf(story, step, travel(step.at / 1e3, next), mirror, known, said);
    });
    for (const { at, happen } of events.sort((one, other) => one.at - other.at)) {
      clock.now = at;
      happen(at);
    }
  }
  return said;
}

function eventsOf(story, { at: micros, cost, status, fields, asks }, { sent, ended, isLost }, mirror, known, said) {
  const decided = micros / 1e3;
  const date = new Date(Math.floor(micros / 1e6) * 1000).toUTCString();
  let call;
  const end = () => {
    known.isCertain = true;
    if (isLost) return call.lost();
    // `Retry-After` alone tells only of what was refused, and where it is not there, what is said is a try.
    known.isTold = story.tells_balances || fields.some(([name]) => name === "retry-after");
    call.answered({ status, headers: new Headers([...fields, ["date", date]]) });
  };
  const ask = ({ left }) => (at) => {
    if (!known.isTold || !known.isCertain) return;
    for (const cost of COSTS) {
      const passes = mirror.passes(cost);
      said.asked += 1;
      said.granted += cost <= left;
      said.go += passes;
      if (passes && cost > left) said.early.push({ status, fields, after: at - decided, cost, left });
    }
    const balance = mirror.balance();
    if (balance > left) said.early.push({ status, fields, after: at - decided, balance, left });
  };
  return [
    { at: sent, happen: () => (call = mirror.sent(cost)) },
    // Nobody tells of a debt before the answer.
    { at: decided, happen: () => (known.isCertain = !story.has_debts) },
    { at: ended, happen: end },
    ...asks.map((one) => ({ at: one.at / 1e3, happen: ask(one) })),
  ];
}
