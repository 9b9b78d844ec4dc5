// A client of `examples/axum.rs` that waits as long as the answers say.
import { RateLimitMirror, type Known } from "./mirror.js";

const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;

/** One mirror for each key and limit that the client has to do with: here its address, and the messages of all. */
const visits = new RateLimitMirror();
const messages = new RateLimitMirror();

const visit = () => tell("visits", async () => {
  const response = await visits.fetch("/");
  return `${response.status} ${await response.text()}`;
});

const send = () => tell("sent", async () => {
  const body = at<HTMLInputElement>("message").value;
  // Nobody watches a page for the half hour until the next message.
  const response = await messages.fetch("/messages", { method: "POST", body, maxWait: 10_000 });
  return `${response.status} ${response.statusText}`;
});

/** Writes into a list what became of a call. */
async function tell(list: string, call: () => Promise<string>): Promise<void> {
  told(list, await call().catch((error: unknown) => `no answer: ${error instanceof Error ? error.message : error}`));
}

function told(list: string, text: string): void {
  const line = document.createElement("li");
  line.textContent = text;
  at(list).prepend(line);
}

/** What is left, and how long to wait where nothing is. */
function show(): void {
  const known = visits.known();
  const left = known.balance === undefined ? "not asked yet" : `${known.balance} left`;
  at("left").textContent = hasToWait(known) ? `the next in ${known.seconds} s` : left;
  const next = messages.known();
  at<HTMLButtonElement>("send").disabled = hasToWait(next);
  at("send").textContent = hasToWait(next) ? `Send in ${next.seconds} s` : "Send";
}

/** Where no instant is known only the server can tell, so it may be asked. */
function hasToWait({ passes, seconds }: Known): boolean {
  return !passes && seconds !== Infinity;
}

at("one").addEventListener("click", () => void visit());
at("many").addEventListener("click", () => Array.from({ length: 35 }, visit));
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  void send();
});
for (const mirror of [visits, messages]) mirror.subscribe(show);
show();
