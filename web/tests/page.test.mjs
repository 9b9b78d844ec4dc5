// The page, as somebody uses it.
import assert from "node:assert/strict";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { after, before, beforeEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Browser, KEYS } from "./browser.mjs";

const page = new URL("../../target/playground/index.html", import.meta.url).href;
const limit = (kind, name, fields, more = []) =>
  `#${new URLSearchParams([["limit", `${kind} ${fields}`], ["name", name], ["calls", "burst size=10 every=2s for=10s key=ada"], ...more])}`;
const FIVE = limit("token_bucket", "five", "rate=5 per=1s");
let browser;

before(async () => {
  browser = await Browser.start();
  await size(1280, 900, "light");
});
after(() => browser.end());
beforeEach(() => browser.open(page));

test("it opens from a file with an example, and complains of nothing", async () => {
  assert.deepEqual(await figures(), [
    ["50", "0", "10"],
    ["25", "25", "5"],
  ]);
  assert.match(await text("#text"), /Limit::token_bucket\("capacity_10", 5, SECOND\)\.capacity\(10\);/);
  assert.deepEqual(await browser.complaints(), []);
});

test("each example is recorded, and nothing used is above its bound", async () => {
  const examples = await browser.run(() => document.querySelectorAll("#preset option:not([hidden])").length);
  for (let example = 0; example < examples; example += 1) {
    await choose("#preset", `${example}`);
    await whole();
    const faults = await browser.run(() =>
      [...document.querySelectorAll(".fault")].map((fault) => fault.textContent).join(""),
    );
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

test("a fault is away while another field beside it is filled in, and then back", async () => {
  await browser.fill("#limit-a-per", "1x");
  assert.ok(await seen("#limit-a-per-fault"));
  await browser.click("#limit-a-capacity");
  assert.ok(!(await seen("#limit-a-per-fault")));
  await browser.click("#calls");
  assert.ok(await seen("#limit-a-per-fault"));
});

test("a scene is recorded frame by frame, and after it the newest one that has no faults", async () => {
  const seen = await browser.run(async () => {
    // By this clock each slice takes longer than a frame has time for.
    let seconds = 0;
    performance.now = () => 1000 * (seconds += 1);
    const [calls, trials] = ["#calls", "#trials"].map((selector) => document.querySelector(selector));
    const shown = () =>
      `${document.querySelector(".trial dd.refused").textContent} refused, ${new URLSearchParams(location.hash.slice(1)).get("calls")}`;
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
  await browser.open(await copied("#link"));
  assert.deepEqual([await figures(), await text("#events"), await value("#calls")], shown);
  assert.equal(await browser.run(() => document.querySelector("#reserve").checked), true);
});

test("a link with a fault shows the fault", async () => {
  await browser.open(page + limit("token_bucket", "wrong", "rate=0 per=1s"));
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
  const said = [];
  for (let step = 0; step < 11; step += 1) {
    await browser.press(KEYS.right);
    said.push(`${await text("#said")} (${(await figures())[0].join(" ")})`);
  }
  assert.deepEqual(
    said.filter((_, step) => [0, 4, 5, 10].includes(step)),
    [
      "0.00 s, ada: five: granted, 4 left (1 0 4)",
      "0.00 s, ada: five: granted, 0 left (5 0 0)",
      "0.00 s, ada: five: refused, try in 200 ms (5 1 0)",
      "2.00 s, ada: five: granted, 4 left (6 5 4)",
    ],
  );
  await browser.press(KEYS.left);
  assert.equal(await text("#clock"), "0.00 s");
  await browser.press("c");
  assert.match(await text("#said"), /^your call: refused/);
  assert.match(await copied("#link"), /clicks=0$/);
  await browser.run(() => document.activeElement.blur());
  await browser.press(KEYS.space);
  assert.equal(await text("#play"), "Pause");
  await browser.press(KEYS.space);
  assert.equal(await text("#play"), "Play");
});

test("ends of calls are steps, too", async () => {
  const ends = [
    ["work", "1s"],
    ["used", "0"],
    ["dies", "2"],
    ["lapses_after", "3s"],
  ];
  await browser.open(
    page + limit("token_bucket", "five", "rate=5 per=1h", ends).replace("size%3D10+every%3D2s", "size%3D2+every%3D1h"),
  );
  assert.deepEqual(await steps(4), [
    "0.00 s, ada: five: granted, 4 left",
    "0.00 s, ada: five: granted, 3 left",
    "1.00 s, ada: five: its work ends, 4 left",
    "3.00 s, ada: five: nobody has settled it, it lapses, 5 left",
  ]);
  await browser.open(page + limit("concurrency", "two", "rate=2 per=1s").replace("size%3D10", "size%3D3"));
  assert.deepEqual((await steps(5)).slice(2), [
    "0.00 s, ada: two: refused, try in 1 s",
    "1.00 s, ada: two: its lease runs out, 2 left",
    "1.00 s, ada: two: its lease runs out, 2 left",
  ]);
});

/** What is said of the first steps. */
function steps(count) {
  return browser.run((count) => {
    document.querySelector("#cursor").value = 0;
    document.querySelector("#cursor").dispatchEvent(new Event("input"));
    return Array.from({ length: count }, () => {
      document.querySelector("#step").click();
      return document.querySelector("#said").textContent;
    });
  }, count);
}

test("buttons play to the end, and call", async () => {
  await browser.open(page + FIVE);
  await choose("#speed", "60");
  await browser.click("#play");
  await says("#play", "Play");
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
  assert.deepEqual(got, [
    "granted in all: noisy 319 of 3000, quiet 275 of 275",
    "granted in all: noisy 923 of 3000, quiet 36 of 275",
  ]);
});

test("shares are lent, and by what all callers share", async () => {
  await browser.open(page);
  await choose("#preset", "3");
  const got = async () => {
    await whole();
    return browser.run(() => [...document.querySelectorAll(".callers")].map((line) => line.textContent));
  };
  assert.deepEqual(await got(), [
    "granted in all: quiet 551 of 551, noisy 119 of 5116",
    "granted in all: quiet 551 of 551, noisy 549 of 5116",
  ]);
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
  assert.match(
    await text(".bound-title"),
    /^granted to tenant in the last 1m, less what came back of it: never above 15000$/,
  );
  await browser.click("#tab-command");
  assert.match(await text("#text"), /--work '5s' \\\n +--used '400' \\\n +--dies '5' \\\n +--lapses-after '20s'$/);
  await browser.open(await copied("#link"));
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
  assert.equal(
    await copied("#copy"),
    'use tollgate::{Limit, SECOND};\n\nconst FIVE: Limit = Limit::token_bucket("five", 5, SECOND);\n\n// gate.consume(FIVE.key(caller)).await?',
  );
  await browser.click("#tab-toml");
  assert.equal(await copied("#copy"), '[five]\nkind = "token_bucket"\nrate = 5\nper = "1s"');
  await browser.click("#tab-toml");
  await browser.press(KEYS.right);
  assert.equal(
    await copied("#copy"),
    "tollgate simulate --limit 'five = { kind = \"token_bucket\", rate = 5, per = \"1s\" }' \\\n    --traffic 'burst size=10 every=2s for=10s key=ada'",
  );
  assert.equal(await copied("#link"), await browser.run(() => location.href));
  // Again before the button says again what it does.
  await copied("#link");
  await says("#link", "Copy link");
});

test("without the right to the clipboard, a text is copied by the selection", async () => {
  await browser.open(page + FIVE);
  const [selected, focused] = await browser.run(async () => {
    navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
    const selected = new Promise((copied) => (document.execCommand = () => copied(document.activeElement.value)));
    document.querySelector("#copy").click();
    const text = await selected;
    await new Promise(requestAnimationFrame);
    return [text, document.activeElement.id];
  });
  assert.equal(selected, await text("#text"));
  assert.equal(focused, "copy");
});

test("what is copied says how the limit is asked", async () => {
  const rust = async (hash) => {
    await browser.open(page + hash);
    return text("#text");
  };
  const ends = [
    ["work", "5s"],
    ["used", "400"],
    ["lapses_after", "20s"],
    ["reserve", ""],
  ];
  assert.match(
    await rust(limit("token_bucket", "minute", "rate=5 per=1m max_reserved=5", ends)),
    new RegExp(
      "^use tollgate::{Limit, MINUTE};\n\nconst MINUTE_LIMIT: Limit = .*\n\n" +
        "// gate\\.reserve\\(MINUTE_LIMIT\\.key\\(caller\\)\\.lapses_after\\(/\\* 20s \\*/\\)\\)\\.await\\?\n// after 5s: gate\\.settle\\(grant, /\\* 400 \\*/\\)\\.await\\?$",
    ),
  );
  assert.match(await rust(limit("token_bucket", "a DAY", "rate=5 per=1s")), /^use tollgate::{Limit, SECOND};/);
  assert.match(
    await rust(limit("concurrency", "at once", "rate=5 per=30s", [["work", "1s"]])),
    /gate\.acquire\(AT_ONCE\.key\(caller\)\)\.await\?\n\/\/ after 1s: lease\.release/,
  );
  await choose("#preset", `${await place("A wallet")}`);
  assert.match(await text("#text"), /gate\.credit\(PREPAID\.key\(caller\)\.cost\(\/\* 40 \*\/\)\)/);
  await browser.click("#tab-command");
  assert.match(await text("#text"), /--funds '40'$/);
  await browser.open(page + FIVE);
  await browser.click("#call");
  await browser.click("#call");
  await browser.click("#tab-command");
  assert.match(
    await text("#text"),
    /--traffic 'burst size=1 every=1s for=1us from=10000000us key=ada' \\\n +--traffic '.* from=10000001us key=ada'$/,
  );
});

test("a plan is asked, and where it refuses credits are", async () => {
  await choose("#preset", `${await place("A plan, then credits")}`);
  const [plan, both] = await figures();
  assert.deepEqual([Number(both[0]) - Number(plan[0]), both[2]], [30, "0"], "all that was bought is spent");
  assert.equal(await text("#name-1"), "plan, else credits");
  assert.match(
    await text("#text"),
    /\/\/ gate\.consume\(first_of\(\[PLAN\.key\(caller\), CREDITS\.key\(caller\)\]\)\)/,
  );
  await browser.click("#tab-command");
  assert.match(await text("#text"), /--in-turn/);
  await browser.open(await copied("#link"));
  assert.deepEqual(await figures(), [plan, both], "a link shows the same");
  await browser.click("#reserve");
  assert.match(await text("#lend-fault"), /^reservations take from no limit for another/);
});

test("a limit that follows its service fails less than a fixed one", async () => {
  await choose("#preset", `${await place("A service that falters")}`);
  const preset = await figures();
  const shares = preset.map(([served, failed]) => Number(failed) / (Number(served) + Number(failed)));
  assert.ok(shares[0] > 0.3 && shares[1] < 0.04, `${shares} fail`);
  assert.ok(Number(preset[1][0]) > 0.85 * Number(preset[0][0]), "most of what the service takes is used");
  assert.deepEqual(await browser.run(() => [...document.querySelectorAll(".bar.failed")].length), 2);
  assert.match(await text("#text"), /if it fails: overrides\.slow_down\(FOLLOWS\.global\(\), .*\* 30s \*/);
  await browser.run(() => {
    document.querySelector("#cursor").value = 500;
    document.querySelector("#cursor").dispatchEvent(new Event("input"));
  });
  const rates = await browser.run(() => [...document.querySelectorAll(".share")].map((share) => share.textContent));
  assert.equal(rates[0], "");
  assert.match(rates[1], /^, at [23]\d % of its rate$/, "the service takes three tenths");
  await browser.click("#tab-command");
  assert.match(await text("#text"), /^# Without the service.*\ntollgate simulate --compare [^#]*$/);
  await browser.open(await copied("#link"));
  assert.deepEqual(await figures(), preset, "a link shows the same");
  await browser.fill("#limit-b-follows", "2d");
  assert.equal(await text("#limit-b-follows-fault"), "it is from 1s to 1d");
  await browser.fill("#limit-b-follows", "30s");
  await browser.fill("#service", "until=9s rate=50 per=1s");
  assert.equal(await text("#service-fault"), '"until=9s": there is no such field (rate, per, falters, from, for)');
  await browser.fill("#service", " ");
  assert.equal(await text("#limit-b-follows-fault"), "there is no service to follow (say what it takes)");
  assert.deepEqual(await figures(), preset, "the last good state stays");
  await browser.fill("#service", "rate=50 per=1s");
  assert.deepEqual(
    (await figures()).map(([, failed]) => failed),
    ["0", "0"],
  );
  await browser.click("#reserve");
  assert.equal(await text("#service-fault"), "reservations do not go on to a service (do not reserve)");
});

test("an address is written now and then, and the link is that of the last good state", async () => {
  await browser.open(page + FIVE);
  const written = await browser.run(() => {
    let written = 0;
    const replace = history.replaceState.bind(history);
    history.replaceState = (...state) => {
      written += 1;
      replace(...state);
    };
    const slider = document.querySelector("#limit-a-rate-slider");
    for (let rate = 1; rate <= 9; rate += 1) {
      slider.value = rate;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
    return written;
  });
  assert.ok(written <= 1, `${written} times`);
  await browser.fill("#limit-a-per", "1x");
  assert.match(await copied("#link"), /limit=token_bucket\+rate%3D9\+per%3D1s/);
});

test("a link holds names with spaces, large seeds, and what is wrong", async () => {
  await browser.open(
    page +
      limit("token_bucket", "my api <b>&", "rate=5 per=1h 30m", [["seed", "9007199254740993"]]).replace(
        "1h+30m",
        "1h30m",
      ),
  );
  const link = await copied("#link");
  await browser.open(link);
  assert.deepEqual([await value("#limit-a-name"), await value("#seed")], ["my api <b>&", "9007199254740993"]);
  assert.equal(await text("#name-0"), "my api <b>&", "markup in a name is its letters");
  assert.equal(await text("#heads th:last-child"), "my api <b>&");
  await browser.fill("#seed", "1.5");
  assert.equal(await text("#seed-fault"), "it is no whole number, or too large");
  await browser.open(page + limit("leaky_bucket", "five", "rate=5 per=1s"));
  assert.match(await text("#limit-a-name-fault"), /^unknown variant `leaky_bucket`/);
  await browser.open(page + limit("token_bucket", "five", "rate=+5 per=1s"));
  assert.match(await text("#limit-a-rate-fault"), /"\+5"/);
  for (const malformed of [
    "#limit",
    "#limit=&limit=&limit=",
    "#%",
    "#limit=%ff%00",
    "#clicks=1,x,-1&limit=token_bucket+rate%3D1+per%3D1s",
    "#limit=token_bucket+rate=&calls=%00",
  ]) {
    await browser.open(page + malformed);
    assert.equal((await figures()).length > 0, true, malformed);
  }
  assert.deepEqual(await browser.complaints(), []);
});

test("two limits have two names", async () => {
  await browser.fill("#limit-b-name", "capacity_10");
  assert.equal(await text("#limit-b-name-fault"), "the other limit has this name");
});

test("the balance is that of the caller who is chosen", async () => {
  await choose("#preset", `${await place("A noisy neighbour")}`);
  await whole();
  assert.match(await text(".balance-title"), /^balance of noisy,/);
  await choose("#watch", "quiet-2");
  await whole();
  assert.match(await text(".balance-title"), /^balance of quiet-2,/);
  await browser.open(await copied("#link"));
  assert.match(await text(".balance-title"), /^balance of quiet-2,/);
});

test("a balance is never told to be more than it is, and unbounded reservations have no bound", async () => {
  await browser.open(
    page +
      limit("token_bucket", "slow", "rate=1 per=1000s capacity=2 max_reserved=unbounded", [
        ["calls", "constant rate=1 per=999s for=999s key=ada"],
        ["reserve", ""],
      ]),
  );
  assert.match(await text(".bound-title"), /: reservations are unbounded$/);
  assert.equal(await browser.run(() => document.querySelectorAll(".bound").length), 0);
  await browser.open(
    page +
      limit("token_bucket", "one", "rate=1 per=1000s", [["calls", "burst size=1 every=996s for=997s key=ada"]]).replace(
        "burst+size%3D10+every%3D2s+for%3D10s+key%3Dada",
        "burst+size%3D1+every%3D996s+for%3D997s+key%3Dada",
      ),
  );
  assert.match(await text("#events"), /refused, try in 4 s/);
});

test("nothing moves while somebody fills in, and what is wrong covers nothing that is filled in", async () => {
  const places = () =>
    browser.run(() =>
      [...document.querySelectorAll(".field, fieldset, .trial, #text, #point, .transport > *")].map((element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return `${element.id || element.className} ${x} ${y} ${width} ${height}`;
      }),
    );
  for (const width of [390, 820, 1280]) {
    await size(width, 900, "light");
    await browser.open(page);
    await browser.run(() => document.querySelector("#limit-a-per").focus({ preventScroll: true }));
    const before = await places();
    await browser.fill("#limit-a-per", "1x");
    await browser.run(() => scrollTo(0, 0));
    assert.notEqual(await text("#limit-a-per-fault"), "");
    assert.deepEqual(await places(), before, `with a fault, ${width} wide`);
    await browser.fill("#limit-a-per", "2s");
    await whole();
    await browser.run(() => scrollTo(0, 0));
    assert.deepEqual(await places(), before, `after an edit, ${width} wide`);
  }
  await size(1280, 900, "light");
});

test("the keyboard reaches every control", async () => {
  const reached = new Set();
  const count = await browser.run(() => {
    document.activeElement.blur();
    window.controls = [...document.querySelectorAll("button, input, select, textarea, [tabindex='0']")].filter(
      (control) => control.checkVisibility() && !control.disabled && control.tabIndex >= 0,
    );
    return window.controls.length;
  });
  for (let presses = 0; presses < count; presses += 1) {
    await browser.press(KEYS.tab);
    reached.add(await browser.run(() => window.controls.indexOf(document.activeElement)));
  }
  const missed = await browser.run(
    (reached) => window.controls.filter((_, place) => !reached.includes(place)).map((control) => control.id),
    [...reached],
  );
  assert.deepEqual(missed, []);
  assert.equal(await browser.run(() => document.querySelector("#limit-a-rate-slider").tabIndex), 0);
  assert.deepEqual(
    await browser.run(() =>
      ["#clock", "#cursor"]
        .map((selector) => document.querySelector(selector))
        .map((element) => [element.ariaLive, element.getAttribute("aria-valuetext")]),
    ),
    [
      ["off", null],
      [null, "10.00 s"],
    ],
  );
});

test("recorded calls are read, and dropped", async () => {
  await browser.open(page + FIVE);
  await load("time,key,cost\n1735689600,bob,2\n1735689600.1,bob,4\n");
  assert.deepEqual(await figures(), [["1", "1", "3.5"]]);
  assert.match(await text("#recorded"), /stays on this machine/);
  await browser.click("#tab-command");
  const name = "tollgate-calls-\\d+\\.csv";
  const search = `tollgate suggest --trace '${name}' --kind token_bucket --per '1s'`;
  assert.match(await text("#text"), new RegExp(`--trace '${name}'\n\n# Which numbers .*:\n${search}$`));
  await browser.click("#limit-a-global");
  assert.match(await text("#text"), new RegExp(`\n${search} --global$`));
  await browser.click("#limit-a-global");
  await become("wallet");
  assert.match(await text("#text"), new RegExp(`--trace '${name}'$`), "no trace tells the numbers of a wallet");
  await become("token_bucket");
  await browser.click("#drop");
  assert.deepEqual(await figures(), [["25", "25", "5"]]);
  await load("time,key,cost\n1735689600,bob,2\n");
  assert.deepEqual(await figures(), [["1", "0", "3"]], "the same file can be chosen again");
  await browser.run((hash) => (location.hash = hash), limit("token_bucket", "four", "rate=4 per=1s"));
  await browser.run(() => new Promise(requestAnimationFrame));
  assert.deepEqual(await figures(), [["20", "30", "4"]], "a link is of its own calls");
  await load(`time\n${"1735689600\n".repeat(20_001)}`);
  assert.match(await text("#csv-fault"), /^these are more than 20000 calls/);
  assert.ok(await seen("#csv-fault"), "where the file is chosen");
  assert.equal(await text("#calls-fault"), "");
  assert.deepEqual(await figures(), [["20", "30", "4"]], "the last good state stays");
});

test("numbers are suggested for recorded calls, and used", async () => {
  await browser.open(page + limit("token_bucket", "five", "rate=5 per=1m"));
  const bursts = [0, 60, 120, 180].flatMap((at) => [...Array(7).fill(`${at},ada`), `${at},bob`]);
  await load(`time,key\n${bursts.join("\n")}\n`);
  await suggest("0%");
  const rows = await browser.run(() =>
    [...document.querySelectorAll("#suggested tbody tr")].map((row) =>
      [...row.querySelectorAll("td")].map((cell) => cell.textContent).concat(row.className),
    ),
  );
  assert.deepEqual(
    rows.find((row) => row.at(-1) === "chosen"),
    ["7", "7", "0", "0", "Use", "chosen"],
  );
  assert.deepEqual(rows[0], ["1", "25", "0", "0", "Use", ""], "of 28 three come back in three minutes");
  await browser.click("#suggested .chosen button");
  assert.deepEqual([await value("#limit-a-rate"), await value("#limit-a-capacity")], ["7", "7"]);
  assert.deepEqual((await figures())[0].slice(0, 2), ["32", "0"]);
  await browser.click("#tab-toml");
  assert.match(await text("#text"), /rate = 7\nper = "1m"\ncapacity = 7$/);
  assert.match(await text("#suggested"), /bold grants a key the least in any 1m/, "the answer stays");
  await suggest("25%");
  assert.match(await text("#suggested"), /caution: 25 % of 2 keys is less than one, so none may be refused/);
  await browser.click("#limit-a-global");
  assert.equal(await text("#suggested"), "", "that is another question");
  await suggest("25%");
  assert.equal(await text("#suggested thead"), "ratecapacitycalls refused", "the share is that of calls alone");
  await suggest("1");
  assert.equal(await text("#share-fault"), "it has no per cent sign (write 0.1%)");
  await become("wallet");
  await suggest("1%");
  assert.match(await text("#share-fault"), /^no trace tells the numbers of a wallet/);
  assert.deepEqual(await browser.complaints(), []);
});

test("a search ends where the question changes", async () => {
  await browser.open(page + FIVE);
  await load("time\n1\n2\n");
  const ended = await browser.run(() => {
    let ended = 0;
    const terminate = Worker.prototype.terminate;
    Worker.prototype.terminate = function () {
      ended += 1;
      terminate.call(this);
    };
    const ends = [];
    for (const selector of ["#share", "#limit-a-per", "#suggest", "#drop"]) {
      document.querySelector("#suggest").click();
      const element = document.querySelector(selector);
      if (element.value === "1s") element.value = "2s";
      if (element.tagName === "BUTTON") element.click();
      else element.dispatchEvent(new Event("input", { bubbles: true }));
      ends.push([ended, document.querySelector("#suggested").textContent]);
    }
    return ends;
  });
  assert.deepEqual(ended, [
    [1, ""],
    [2, ""],
    [3, "Searching …"],
    [5, ""],
  ]);
});

test("every control has a name", async () => {
  const nameless = await browser.run(() => {
    const controls = [...document.querySelectorAll("button, input, select, textarea")].filter((control) =>
      control.checkVisibility(),
    );
    const named = ({ labels, textContent, ariaLabel }) =>
      (labels?.length ?? 0) > 0 || ariaLabel !== null || textContent.trim() !== "";
    return controls.filter((control) => !named(control)).map((control) => control.outerHTML);
  });
  assert.deepEqual(nameless, []);
});

for (const [name, width, height] of [
  ["phone", 390, 844],
  ["tablet", 820, 1180],
  ["desktop", 1440, 900],
]) {
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

test("it looks as it did: half played", async () => {
  await size(1440, 900, "light");
  await browser.run(() => {
    document.querySelector("#cursor").value = 500;
    document.querySelector("#cursor").dispatchEvent(new Event("input"));
    for (let steps = 0; steps < 3; steps += 1) document.querySelector("#back").click();
  });
  await looks("half-played");
});

test("it looks as it did: a form with a fault", async () => {
  await size(390, 844, "dark");
  await browser.open(page);
  await browser.fill("#limit-a-per", "1x");
  await whole();
  await browser.run(() => {
    document.activeElement.blur();
    document.querySelector("#setup").scrollIntoView();
  });
  await looks("fault-phone");
});

test("a look misses whatever is not drawn", async () => {
  await size(1440, 900, "light");
  const before = await reference("desktop-light");
  for (const part of [
    "main",
    ".trial:nth-child(2)",
    ".trial .balance",
    ".trial .answers",
    ".trial .used",
    ".trial .used .line, .trial .used .area",
  ]) {
    await browser.open(page);
    await browser.run(
      (part) => document.querySelectorAll(part).forEach((found) => (found.style.visibility = "hidden")),
      part,
    );
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
  if (difference > TOLERANCE)
    await writeFile(new URL(`../../target/web/${name}.webp`, import.meta.url), seen, "base64");
  assert.ok(
    difference <= TOLERANCE,
    `differs by ${difference} from ${fileURLToPath(lookOf(name))}; it is in target/web`,
  );
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
 * How far two pictures differ: blurred as letters of another hinting are, the mean difference of colour within the
 * square of 64 pixels in which it is the largest. Black on white is 1, other spaces between letters are 0.03, and a plot
 * with nothing in it is 0.05.
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
    const [x, y] = [(place >> 2) % some.width, Math.floor((place >> 2) / some.width)].map((at) =>
      Math.floor(at / square),
    );
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
  return browser.run(
    () =>
      new Promise((whole) => {
        const trials = document.querySelector("#trials");
        const look = () => trials.ariaBusy === "true" || whole();
        new MutationObserver(look).observe(trials, { attributes: true });
        look();
      }),
  );
}

/** Waits until an element says these words; it may have said them before it is asked. */
function says(selector, words) {
  return browser.run(
    (selector, words) =>
      new Promise((said) => {
        const element = document.querySelector(selector);
        const look = () => element.textContent === words && said();
        new MutationObserver(look).observe(element, { childList: true });
        look();
      }),
    selector,
    words,
  );
}

/** The place of an example. */
function place(title) {
  return browser.run(
    (title) => [...document.querySelectorAll("#preset option")].find((option) => option.textContent === title).value,
    title,
  );
}

/** The heights of points that are drawn above their bound: heights grow downwards. */
function above() {
  return [...document.querySelectorAll(".plots > .used")].flatMap((plot) => {
    const [, bound] = / ([\d.]+)H/.exec(plot.querySelector(".bound").getAttribute("d"));
    const points = [
      ...plot
        .querySelector(".line")
        .getAttribute("d")
        .matchAll(/ ([\d.]+)/g),
    ];
    return points.map(([, height]) => height).filter((height) => Number(height) < Number(bound));
  });
}

/** Grants, failures if there is a service, refusals and balance of each limit. */
async function figures() {
  await whole();
  return browser.run(() =>
    [...document.querySelectorAll(".trial")].map((trial) =>
      [...trial.querySelectorAll("div:not([hidden]) > dd")].map((figure) => figure.textContent),
    ),
  );
}

async function text(selector) {
  await whole();
  return browser.run((selector) => document.querySelector(selector).textContent, selector);
}

function seen(selector) {
  return browser.run(
    (selector) => document.querySelector(selector).checkVisibility({ visibilityProperty: true }),
    selector,
  );
}

/** Has the page read recorded calls. */
async function load(lines) {
  const file = `${tmpdir()}/tollgate-calls-${process.pid}.csv`;
  await writeFile(file, lines);
  await browser.type("#csv", file);
  await browser.run(
    () =>
      new Promise((read) => {
        const look = () =>
          document.querySelector("#recorded").hidden && document.querySelector("#csv-fault").textContent === ""
            ? requestAnimationFrame(look)
            : read();
        look();
      }),
  );
}

/** Has the page search for numbers, and waits for the answer. */
async function suggest(share) {
  await browser.fill("#share", share);
  await browser.click("#suggest");
  await browser.run(
    () =>
      new Promise((found) => {
        const place = document.querySelector("#suggested");
        const look = () => place.ariaBusy === "true" || found();
        new MutationObserver(look).observe(place, { attributes: true });
        look();
      }),
  );
}

/** Makes limit A one of another kind. */
function become(kind) {
  return browser.run((kind) => {
    document.querySelector("#limit-a-kind").value = kind;
    document.querySelector("#limit-a-kind").dispatchEvent(new Event("input", { bubbles: true }));
  }, kind);
}

/** What a button copies. */
async function copied(button) {
  await whole();
  await browser.run(() => {
    navigator.clipboard.writeText = async (text) => void (window.copied = text);
  });
  await browser.click(button);
  return browser.run(() => window.copied);
}

function value(selector) {
  return browser.run((selector) => document.querySelector(selector).value, selector);
}

function choose(selector, value) {
  return browser.run(
    (selector, value) => {
      const select = document.querySelector(selector);
      select.value = value;
      select.dispatchEvent(new Event("change", { bubbles: true }));
    },
    selector,
    value,
  );
}
