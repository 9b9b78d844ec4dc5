// A headless Chromium, by the protocol of its driver (W3C WebDriver).
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export class Browser {
  static async start() {
    const driver = spawn("chromedriver", ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
    const port = await new Promise((found, missing) => {
      createInterface(driver.stdout).on("line", (line) => {
        const port = /started successfully on port (\d+)/.exec(line)?.[1];
        if (port !== undefined) found(port);
      });
      driver.once("exit", () => missing(new Error("chromedriver ended before it listened")));
    });
    const browser = new Browser(driver, `http://127.0.0.1:${port}`);
    const args = ["--headless=new", "--disable-gpu", "--hide-scrollbars", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])];
    const capabilities = { "goog:chromeOptions": { args }, "goog:loggingPrefs": { browser: "ALL" } };
    const { sessionId } = await browser.#post("/session", { capabilities: { alwaysMatch: capabilities } });
    browser.#session = `/session/${sessionId}`;
    return browser;
  }

  #driver;
  #base;
  #session = "";

  constructor(driver, base) {
    [this.#driver, this.#base] = [driver, base];
  }

  async end() {
    await fetch(this.#base + this.#session, { method: "DELETE" });
    this.#driver.kill();
    await once(this.#driver, "exit");
  }

  /** Opens a page as if for the first time. */
  async open(url) {
    await this.#post(`${this.#session}/url`, { url: "about:blank" });
    await this.#post(`${this.#session}/url`, { url });
  }

  /** What a function of JavaScript, run in the page, returns. */
  run(script, ...args) {
    return this.#post(`${this.#session}/execute/sync`, { script: `return (${script})(...arguments)`, args });
  }

  /** Runs a text of JavaScript in the page. */
  load(text) {
    return this.#post(`${this.#session}/execute/sync`, { script: text, args: [] });
  }

  async click(selector) {
    await this.#post(`${this.#session}/element/${await this.#find(selector)}/click`, {});
  }

  /** Types into an element, in place of what is there. */
  async fill(selector, text) {
    const element = await this.#find(selector);
    await this.#post(`${this.#session}/element/${element}/clear`, {});
    await this.#post(`${this.#session}/element/${element}/value`, { text });
  }

  /** Chooses a file, or an option by its words. */
  async type(selector, text) {
    await this.#post(`${this.#session}/element/${await this.#find(selector)}/value`, { text });
  }

  /** Presses keys, one after another, wherever the focus is. */
  async press(...keys) {
    const actions = keys.flatMap((value) => [{ type: "keyDown", value }, { type: "keyUp", value }]);
    await this.#post(`${this.#session}/actions`, { actions: [{ type: "key", id: "keys", actions }] });
  }

  cdp(cmd, params) {
    return this.#post(`${this.#session}/goog/cdp/execute`, { cmd, params });
  }

  /** What the page has complained of on its console since it was asked last. */
  async complaints() {
    const entries = await this.#post(`${this.#session}/se/log`, { type: "browser" });
    return entries.map(({ message }) => message);
  }

  async #find(selector) {
    return Object.values(await this.#post(`${this.#session}/element`, { using: "css selector", value: selector }))[0];
  }

  async #post(path, body) {
    const response = await fetch(this.#base + path, { method: "POST", body: JSON.stringify(body) });
    const { value } = await response.json();
    if (!response.ok) throw new Error(`${path}: ${value.message}`);
    return value;
  }
}

export const KEYS = { left: "\uE012", right: "\uE014", tab: "\uE004", space: " " };
