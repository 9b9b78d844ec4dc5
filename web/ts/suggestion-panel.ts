// The panel beside recorded calls: it asks for numbers, and shows the choices.
import { Faulty } from "./core";
import { complain } from "./form";
import type { LimitForm, Scene } from "./scene";
import { type Choice, type Search, type Suggestion, search } from "./suggestion";

export interface Asked {
  scene: Scene;
  limit: LimitForm;
}

/**
 * Binds the panel to what it asks about, and to what uses a choice. Call the function that it returns with everything
 * that the answer depends on: when that changes, it forgets the answer and ends the search.
 */
export function suggestionPanel(ask: () => Asked, use: (choice: Choice) => void): (...about: string[]) => void {
  const at = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
  const [share, fault, place] = [at<HTMLInputElement>("share"), at("share-fault"), at("suggested")];
  let running: Search | undefined;
  let known: string[] = [];

  const forget = () => {
    running?.stop();
    running = undefined;
    place.replaceChildren();
    place.ariaBusy = "false";
    complain(share, fault, undefined);
  };
  const start = async () => {
    forget();
    const { scene, limit } = ask();
    const own = (running = search(scene, share.value.trim()));
    place.textContent = "Searching …";
    place.ariaBusy = "true";
    try {
      show(place, await own.answer, limit, use);
    } catch (error) {
      if (!(error instanceof Faulty)) throw error;
      place.replaceChildren();
      complain(share, fault, error.message);
    }
    running = undefined;
    place.ariaBusy = "false";
  };
  share.addEventListener("input", forget);
  share.addEventListener("keydown", ({ key }) => key === "Enter" && void start());
  at("suggest").addEventListener("click", () => void start());
  return (...about) => {
    if (about.length !== known.length || about.some((part, place) => part !== known[place])) forget();
    known = about;
  };
}

function show(place: HTMLElement, found: Suggestion, limit: LimitForm, use: (choice: Choice) => void): void {
  const { choices, choice, caveats } = found;
  const isBucket = limit.kind === "token_bucket";
  // A window has one number, and where all callers share the limit, keys do not count.
  const columns = ([rate, capacity, calls, keys]: readonly [unknown, unknown, unknown, unknown]) => [
    rate,
    ...(isBucket ? [capacity] : []),
    calls,
    ...(limit.global ? [] : [keys]),
  ];
  const heads = columns(["rate", "capacity", "calls refused", "keys"]).map((head) => `<th scope="col">${head}</th>`);
  const rows = choices.map(({ rate, capacity, calls, keys }, row) => {
    const cells = columns([rate, capacity, calls, keys]).map((number) => `<td>${number}</td>`);
    const told = isBucket ? `rate ${rate}, capacity ${capacity}` : `rate ${rate}`;
    const button = `<td><button type="button" data-choice="${row}" aria-label="Use ${told}">Use</button></td>`;
    return `<tr${row === choice ? ' class="chosen"' : ""}>${cells.join("")}${button}</tr>`;
  });
  const head = `<thead><tr>${heads.join("")}<th></th></tr></thead>`;
  place.innerHTML = `<table>${head}<tbody>${rows.join("")}</tbody></table>`;
  for (const button of place.querySelectorAll("button"))
    button.addEventListener("click", () => use(choices[Number(button.dataset["choice"])]!));
  const bold = isBucket
    ? `bold grants a key the least in any ${limit.per}`
    : "bold is the smallest that refuses no more";
  for (const line of [bold, ...caveats.map((caveat) => `caution: ${caveat}`)]) {
    const told = document.createElement("p");
    told.textContent = line;
    place.append(told);
  }
}
