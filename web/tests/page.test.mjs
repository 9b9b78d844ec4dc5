// The page, as somebody uses it.
import assert from "node:assert/strict";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { after, before, beforeEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Browser, KEYS } from "./browser.mjs";

const page = new URL("../../target/playground/index.html", import.meta.url).href;
const limit = (kind, fields) => `#${new URLSearchParams([["limit", `${kind} ${fields}`], ["calls", "burst size=10 every=2s for=10s key=ada"]])}`;
const FIVE = limit("token_bucket", "name=five rate=5 per=1s");
let browser;

before(async () => {
  browser = await Browser.start();
  await size(1280, 900, "light");
});
after(() => browser.end());
beforeEach(() => browser.open(page));

test("it opens from a file with an example, and complains of nothing", async () => {
  assert.deepEqual(await figures(), [["50", "0", "10"], ["25", "25", "5"]]);
  assert.match(await text("#text"), /Limit::token_bucket\("capacity_10", 5, SECOND\)\.capacity\(10\);/);
  assert.deepEqual(await browser.complaints(), []);
});

test("each example is recorded, and nothing used is above its bound", async () => {
  const examples = await browser.run(() => document.querySelectorAll("#preset option:not([hidden])").length);
  for (let example = 0; example < examples; example += 1) {
    await choose("#preset", `${example}`);
    await whole();
    const faults = await browser.run(() => [...document.querySelectorAll(".fault")].map((fault) => fault.textContent).join(""));
    assert.equal(faults, "", `of example ${example}`);
    const [granted] = (await figures())[0];
    assert.ok(Number(granted) > 0, `example ${example} grants ${granted}`);
    assert.deepEqual(await browser.run(above), [], `of example ${example}`);
  }
});

test("a limit is changed by its field, and by its slider", async () => {
  await browser.fill("#limit-b-capacity", "7");
  assert.deepEqual((await figures())[1], ["35", "15", "7"]);
  await browser.run(() => {
    const slider = document.querySelector("#limit-b-capacity-slider");
    slider.value = 10;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  });
  assert.deepEqual((await figures())[1], ["50", "0", "10"]);
  assert.equal(await value("#limit-b-capacity"), "10");
});

test("a fault is told beside its field, and the last good state stays", async () => {
  const before = await browser.run(() => location.hash);
  await browser.fill("#limit-a-per", "1x");
  assert.match(await text("#limit-a-per-fault"), /"1x" is not a span of time/);
  assert.equal(await browser.run(() => document.querySelector("#limit-a-per").getAttribute("aria-invalid")), "true");
  assert.deepEqual((await figures())[0], ["50", "0", "10"]);
  assert.doesNotMatch(await browser.run(() => location.hash), /1x/);
  await browser.fill("#limit-a-per", "1s");
  assert.equal(await text("#limit-a-per-fault"), "");
  await browser.fill("#calls", "steady rate=1 per=1s");
  assert.match(await text("#calls-fault"), /"steady" is no pattern of traffic/);
  assert.notEqual(before, "");
});

test("a scene is recorded frame by frame, and after it the newest one that has no faults", async () => {
  const seen = await browser.run(async () => {
    // By this clock each slice takes longer than a frame has time for.
    let seconds = 0;
    performance.now = () => 1000 * (seconds += 1);
    const [calls, trials] = ["#calls", "#trials"].map((selector) => document.querySelector(selector));
    const shown = () => `${document.querySelector(".trial dd.refused").textContent} refused, ${new URLSearchParams(location.hash.slice(1)).get("calls")}`;
    const fill = (text) => {
      calls.value = text;
      calls.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const frame = () => new Promise(requestAnimationFrame);
    const seen = [];
    const look = () => seen.at(-1) === shown() || seen.push(shown());
    fill("burst size=1000 every=1h for=1s");
    look();
    await frame();
    fill("burst size=1500 every=1h for=1s");
    look();
    await frame();
    fill("burst size=2000 every=1h for=1s");
    look();
    await frame();
    fill("burst size=2000 every=never");
    seen.push(document.querySelector("#calls-fault").textContent);
    while (trials.ariaBusy === "true") {
      look();
      await frame();
    }
    look();
    return seen;
  });
  assert.deepEqual(seen, [
    "0 refused, burst size=10 every=2s for=10s key=dashboard",
    '"every=never": "never" is not a span of time: expected number at 0 (write "1h 30m")',
    "0 refused, burst size=10 every=2s for=10s key=dashboard",
    "990 refused, burst size=1000 every=1h for=1s",
    "1990 refused, burst size=2000 every=1h for=1s",
  ]);
});

test("a link shows the same", async () => {
  await browser.fill("#limit-b-capacity", "7");
  await browser.fill("#calls", "poisson rate=7 per=1s for=20s clients=2");
  await browser.click("#reserve");
  const shown = [await figures(), await text("#events"), await value("#calls")];
  const link = await browser.run(() => location.href);
  await browser.open(link);
  assert.deepEqual([await figures(), await text("#events"), await value("#calls")], shown);
  assert.equal(await browser.run(() => document.querySelector("#reserve").checked), true);
});

test("a link with a fault shows the fault", async () => {
  await browser.open(page + limit("token_bucket", "name=wrong rate=0 per=1s"));
  assert.equal(await text("#limit-a-rate-fault"), "the rate must be positive");
  assert.equal((await figures()).length, 2, "the example stays behind it");
});

test("keys step call by call, play, and call", async () => {
  await browser.open(page + FIVE);
  await browser.run(() => {
    document.querySelector("#cursor").value = 0;
    document.querySelector("#cursor").dispatchEvent(new Event("input"));
    document.activeElement.blur();
  });
  await browser.press(KEYS.right);
  assert.match(await text("#said"), /^2\.00 s, ada: five: refused/, "the burst at the start is made, the next is one step on");
  await browser.press(KEYS.left);
  assert.equal(await text("#clock"), "0.00 s");
  await browser.press("c");
  assert.match(await text("#said"), /^your call: refused/);
  assert.match(await browser.run(() => location.hash), /clicks=0$/);
  await browser.press(KEYS.space);
  assert.equal(await text("#play"), "Pause");
  await browser.press(KEYS.space);
  assert.equal(await text("#play"), "Play");
});

test("buttons play to the end, and call", async () => {
  await browser.open(page + FIVE);
  await choose("#speed", "60");
  await browser.click("#play");
  await browser.run(() => new Promise((ended) => {
    new MutationObserver(() => document.querySelector("#play").textContent === "Play" && ended()).observe(document.querySelector("#play"), { childList: true });
  }));
  assert.equal(await text("#clock"), "10.00 s");
  await browser.click("#call");
  assert.deepEqual((await figures())[0].slice(0, 2), ["26", "25"]);
  await browser.click("#forget");
  assert.deepEqual((await figures())[0].slice(0, 2), ["25", "25"]);
});

test("a second limit is compared, and dropped", async () => {
  await browser.open(page + FIVE);
  assert.equal((await figures()).length, 1);
  await browser.click("#compare");
  assert.equal((await figures()).length, 2);
  await browser.click("#compare");
  assert.equal((await figures()).length, 1);
});

test("what each caller got is told", async () => {
  await browser.open(page);
  await choose("#preset", "2");
  await whole();
  const got = await browser.run(() => [...document.querySelectorAll(".callers")].map((line) => line.textContent));
  assert.deepEqual(got, ["granted in all: noisy 319 of 3000, quiet 275 of 275", "granted in all: noisy 923 of 3000, quiet 36 of 275"]);
});

test("shares are lent, and by what all callers share", async () => {
  await browser.open(page);
  await choose("#preset", "3");
  const got = async () => {
    await whole();
    return browser.run(() => [...document.querySelectorAll(".callers")].map((line) => line.textContent));
  };
  assert.deepEqual(await got(), ["granted in all: quiet 551 of 551, noisy 119 of 5116", "granted in all: quiet 551 of 551, noisy 549 of 5116"]);
  assert.equal(await text("#name-1"), "own and shared");
  await browser.click("#tab-command");
  assert.match(await text("#text"), /--global 'shared = .*--lend-above '200'/s);
  await browser.fill("#lend", "300");
  assert.match((await got())[1], /quiet 551 of 551, noisy 119 of 5116$/, "nothing is above");
  await browser.click("#limit-b-global");
  assert.equal(await text("#lend-fault"), "the second limit is not shared by all callers");
  assert.match((await got())[1], /noisy 119/, "the last good state stays");
});

test("a budget is settled, and clients die", async () => {
  await choose("#preset", `${await place("A budget whose client dies")}`);
  await whole();
  const preset = await figures();
  assert.match(await text(".bound-title"), /^granted to tenant in the last 1m, less what came back of it: never above 15000$/);
  await browser.click("#tab-command");
  assert.match(await text("#text"), /--work '5s' \\\n +--used '400' \\\n +--dies '5' \\\n +--lapses-after '20s'$/);
  await browser.open(await browser.run(() => location.href));
  assert.deepEqual(await figures(), preset, "a link shows the same");
  await browser.fill("#dies", "0");
  assert.equal(await text("#dies-fault"), "it is no whole number from 1 on (write 5, for every fifth)");
  assert.deepEqual(await figures(), preset, "the last good state stays");
  await browser.fill("#dies", "1");
  await whole();
  const [dead] = await figures();
  assert.ok(Number(dead[0]) < Number(preset[0][0]), "nobody settles, and less is granted");
  await browser.fill("#lapses_after", "1s");
  await whole();
  assert.equal((await figures())[0][1], "0", "all comes back at once");
  await browser.open(page + FIVE);
  await browser.fill("#used", "1");
  assert.equal(await text("#used-fault"), "no work ends (say how long it lasts)");
});

test("texts are copied", async () => {
  await browser.open(page + FIVE);
  const copied = async (button) => {
    await browser.run(() => {
      navigator.clipboard.writeText = async (text) => void (window.copied = text);
    });
    await browser.click(button);
    return browser.run(() => window.copied);
  };
  assert.equal(await copied("#copy"), 'use tollgate::{Limit, SECOND};\n\nconst FIVE: Limit = Limit::token_bucket("five", 5, SECOND);');
  await browser.click("#tab-toml");
  assert.equal(await copied("#copy"), '[five]\nkind = "token_bucket"\nrate = 5\nper = "1s"');
  await browser.click("#tab-toml");
  await browser.press(KEYS.right);
  assert.equal(
    await copied("#copy"),
    "tollgate simulate --limit 'five = { kind = \"token_bucket\", rate = 5, per = \"1s\" }' \\\n    --traffic 'burst size=10 every=2s for=10s key=ada'",
  );
  assert.equal(await copied("#link"), await browser.run(() => location.href));
});

test("recorded calls are read, and dropped", async () => {
  await browser.open(page + FIVE);
  const file = `${tmpdir()}/tollgate-calls-${process.pid}.csv`;
  await writeFile(file, "time,key,cost\n1735689600,bob,2\n1735689600.1,bob,4\n");
  await browser.type("#csv", file);
  await browser.run(() => new Promise((read) => {
    const recorded = document.querySelector("#recorded");
    if (!recorded.hidden) return read();
    new MutationObserver(read).observe(recorded, { attributes: true });
  }));
  assert.deepEqual(await figures(), [["1", "1", "3.5"]]);
  assert.match(await text("#recorded"), /stays on this machine/);
  await browser.click("#drop");
  assert.deepEqual(await figures(), [["25", "25", "5"]]);
});

test("every control has a name", async () => {
  const nameless = await browser.run(() => {
    const controls = [...document.querySelectorAll("button, input, select, textarea")].filter((control) => control.checkVisibility());
    const named = ({ labels, textContent, ariaLabel }) => (labels?.length ?? 0) > 0 || ariaLabel !== null || textContent.trim() !== "";
    return controls.filter((control) => !named(control)).map((control) => control.outerHTML);
  });
  assert.deepEqual(nameless, []);
});

for (const [name, width, height] of [["phone", 390, 844], ["tablet", 820, 1180], ["desktop", 1440, 900]]) {
  for (const theme of ["light", "dark"]) {
    test(`it looks as it did: ${name}, ${theme}`, async () => {
      await size(width, height, theme);
      await browser.open(page);
      const wide = await browser.run(() => document.documentElement.scrollWidth);
      assert.equal(wide, width, "nothing hangs over");
      await looks(`${name}-${theme}`);
    });
  }
}

test("a look misses whatever is not drawn", async () => {
  await size(1440, 900, "light");
  const before = await reference("desktop-light");
  for (const part of ["main", ".trial:nth-child(2)", ".trial .balance", ".trial .answers", ".trial .used", ".trial .used .line, .trial .used .area"]) {
    await browser.open(page);
    await browser.run((part) => document.querySelectorAll(part).forEach((found) => (found.style.visibility = "hidden")), part);
    const difference = await browser.run(differ, await look(), before);
    assert.ok(difference > TOLERANCE, `without ${part} it differs by ${difference}`);
  }
});

/** Compares what is seen with how it looked, or writes that. */
async function looks(name) {
  const seen = await look();
  if (process.env.WRITE_LOOKS !== undefined) {
    await mkdir(new URL("looks", import.meta.url), { recursive: true });
    await writeFile(lookOf(name), seen, "base64");
  }
  const difference = await browser.run(differ, seen, await reference(name));
  if (difference > TOLERANCE) await writeFile(new URL(`../../target/web/${name}.webp`, import.meta.url), seen, "base64");
  assert.ok(difference <= TOLERANCE, `differs by ${difference} from ${fileURLToPath(lookOf(name))}; it is in target/web`);
}

async function look() {
  const { data } = await browser.cdp("Page.captureScreenshot", { format: "webp", quality: 50 });
  return data;
}

function lookOf(name) {
  return new URL(`looks/${name}.webp`, import.meta.url);
}

function reference(name) {
  return readFile(lookOf(name), "base64");
}

/**
 * How far two pictures differ: blurred as letters of another hinting are, the mean difference of colour within the square
 * of 64 pixels in which it is the largest. Black on white is 1, other spaces between letters are 0.03, and a plot with
 * nothing in it is 0.05.
 */
async function differ(one, other) {
  const [blur, square] = [8, 8];
  const pixels = async (data) => {
    const image = new Image();
    image.src = `data:image/webp;base64,${data}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width / blur, image.height / blur);
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return context.getImageData(0, 0, canvas.width, canvas.height);
  };
  const [some, others] = [await pixels(one), await pixels(other)];
  if (some.width !== others.width || some.height !== others.height) return 1;
  const squares = new Map();
  some.data.forEach((value, place) => {
    // The fourth of each pixel is how far it is opaque: all are.
    if (place % 4 === 3) return;
    const [x, y] = [(place >> 2) % some.width, Math.floor((place >> 2) / some.width)].map((at) => Math.floor(at / square));
    const [sum, count] = squares.get(`${x} ${y}`) ?? [0, 0];
    squares.set(`${x} ${y}`, [sum + Math.abs(value - others.data[place]), count + 1]);
  });
  return Math.max(...[...squares.values()].map(([sum, count]) => sum / count / 255));
}
const TOLERANCE = 0.03;

async function size(width, height, theme) {
  await browser.cdp("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
  await browser.cdp("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
}

/** Waits until what is shown is what is filled in. */
function whole() {
  return browser.run(() => new Promise((whole) => {
    const trials = document.querySelector("#trials");
    const look = () => trials.ariaBusy === "true" || whole();
    new MutationObserver(look).observe(trials, { attributes: true });
    look();
  }));
}

/** The place of an example. */
function place(title) {
  return browser.run((title) => [...document.querySelectorAll("#preset option")].find((option) => option.textContent === title).value, title);
}

/** The heights of points that are drawn above their bound: heights grow downwards. */
function above() {
  return [...document.querySelectorAll(".plots > .used")].flatMap((plot) => {
    const [, bound] = / ([\d.]+)H/.exec(plot.querySelector(".bound").getAttribute("d"));
    const points = [...plot.querySelector(".line").getAttribute("d").matchAll(/ ([\d.]+)/g)];
    return points.map(([, height]) => height).filter((height) => Number(height) < Number(bound));
  });
}

/** Grants, refusals and balance of each limit. */
async function figures() {
  await whole();
  return browser.run(() => [...document.querySelectorAll(".trial")].map((trial) => [...trial.querySelectorAll("dd")].map((figure) => figure.textContent)));
}

async function text(selector) {
  await whole();
  return browser.run((selector) => document.querySelector(selector).textContent, selector);
}

function value(selector) {
  return browser.run((selector) => document.querySelector(selector).value, selector);
}

function choose(selector, value) {
  return browser.run((selector, value) => {
    const select = document.querySelector(selector);
    select.value = value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  }, selector, value);
}
