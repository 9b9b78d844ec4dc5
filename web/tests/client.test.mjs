// A client of the example `axum`, on a real server, waits as its answers tell.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, test } from "node:test";
import { Browser } from "./browser.mjs";

let browser, example, page;
// Each test has a server of its own: what one uses up of its address would be refused to the next.
beforeEach(async () => {
  example = spawn(process.env.AXUM_EXAMPLE, { env: { ...process.env, PORT: "0" }, stdio: ["ignore", "pipe", "inherit"] });
  const address = new Promise((found, missing) => {
    createInterface(example.stdout).on("line", (line) => {
      const address = /^listening on (.*)/.exec(line)?.[1];
      if (address !== undefined) found(address);
    });
    example.once("exit", () => missing(new Error("the example ended before it listened")));
  });
  page = `${await address}/client`;
  browser = await Browser.start();
});
afterEach(async () => {
  await browser?.end();
  example.kill("SIGINT");
  await once(example, "exit");
});

/** Counts the lines of a list until there are so many; meanwhile all statuses that the server answers. */
function answered(list, lines, selector, clicks) {
  return browser.run((list, lines, selector, clicks) => {
    const statuses = [];
    const send = window.fetch.bind(window);
    window.fetch = async (...request) => {
      const response = await send(...request);
      statuses.push(response.status);
      return response;
    };
    const all = new Promise((done) => {
      const lists = document.querySelector(list);
      new MutationObserver(() => lists.childElementCount === lines && done()).observe(lists, { childList: true });
    });
    for (let times = 0; times < clicks; times += 1) document.querySelector(selector).click();
    return all.then(() => statuses);
  }, list, lines, selector, clicks);
}

test("more visits than there are tokens are all granted, none is refused on the way", async () => {
  await browser.open(page);
  const statuses = await answered("#visits", 35, "#many", 1);
  assert.deepEqual(statuses, Array(35).fill(200));
});

test("what is used up cannot be sent, and counts down", async () => {
  await browser.open(page);
  assert.deepEqual(await answered("#sent", 2, "#send", 2), [201, 201]);
  const [text, disabled] = await browser.run(() => {
    const send = document.querySelector("#send");
    return [send.textContent, send.disabled];
  });
  assert.match(text, /^Send in 1[78]\d\d s$/);
  assert.equal(disabled, true);
});

test("what gets no answer says so, and the next one waits", async () => {
  await browser.open(page);
  const [line, left, rejected] = await browser.run(() => {
    const rejected = [];
    window.addEventListener("unhandledrejection", ({ reason }) => rejected.push(String(reason)));
    window.fetch = () => Promise.reject(new TypeError("the network is away"));
    const visits = document.querySelector("#visits");
    const told = new Promise((done) => new MutationObserver(done).observe(visits, { childList: true }));
    document.querySelector("#one").click();
    return told.then(() => [visits.textContent, document.querySelector("#left").textContent, rejected]);
  });
  assert.deepEqual([line, left, rejected], ["no answer: the network is away", "the next in 1 s", []]);
});

test("what others have used up is refused at once, and then counts down", async () => {
  await browser.open(page);
  const message = { method: "POST", body: "mine" };
  for (let times = 0; times < 2; times += 1) await fetch(new URL("/messages", page), message);
  assert.deepEqual(await answered("#sent", 1, "#send", 1), [429]);
  assert.match(await browser.run(() => document.querySelector("#send").textContent), /^Send in 1[78]\d\d s$/);
});
