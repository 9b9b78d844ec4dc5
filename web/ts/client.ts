// A client of `examples/axum.rs` that waits as it is told.
import { RateLimitMirror } from "./mirror.js";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;

/** One mirror for each key and limit that the client has to do with: here its address, and the messages of all. */
const visits = new RateLimitMirror();
const messages = new RateLimitMirror();

async function visit(): Promise<void> {
  const response = await visits.fetch("/");
  told("visits", `${response.status} ${await response.text()}`);
}

async function send(): Promise<void> {
  const response = await messages.fetch("/messages", { method: "POST", body: at<HTMLInputElement>("message").value });
  told("sent", `${response.status} ${response.statusText}`);
}

function told(list: string, text: string): void {
  const line = document.createElement("li");
  line.textContent = text;
  at(list).prepend(line);
}

/** What is left, and how long to wait where nothing is. */
function show(): void {
  const { balance, passes, seconds } = visits.known();
  at("left").textContent = balance === undefined ? "not asked yet" : passes ? `${balance} left` : `the next in ${seconds} s`;
  const next = messages.known();
  at<HTMLButtonElement>("send").disabled = !next.passes;
  at("send").textContent = next.passes ? "Send" : `Send in ${next.seconds} s`;
}

at("one").addEventListener("click", () => void visit());
at("many").addEventListener("click", () => Array.from({ length: 35 }, visit));
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  void send();
});
for (const mirror of [visits, messages]) mirror.subscribe(show);
show();
