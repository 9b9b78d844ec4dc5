// The form of a limit: the words of a limits file, and their faults beside them.
import { FIELDS, type Field, KINDS, type LimitForm, fieldsOf, wordFor } from "./scene";

const HINTS: { [field in Field]: string } = {
  rate: "tokens",
  per: "10s, 1m, 1h 30m",
  capacity: "the rate",
  start: "0s is the full minute",
  resolution: "as finely as can be",
  max_reserved: "0, or unbounded",
  shards: "1",
  follows: "does not follow",
};

/** Numbers with a slider. */
const SLIDERS: readonly Field[] = ["rate", "capacity"];

export interface LimitEditor {
  element: HTMLFieldSetElement;
  show(form: LimitForm, faults: ReadonlyMap<string, string>): void;
}

/** Builds a form, which tells each change as the whole limit. */
export function limitEditor(id: string, legend: string, changed: (form: LimitForm) => void): LimitEditor {
  const element = document.createElement("fieldset");
  const options = KINDS.map((kind) => `<option value="${kind}">${kind.replace("_", " ")}</option>`);
  element.innerHTML = `<legend>${legend}</legend>
    <div class="row"><div class="field"><label for="${id}-name">name</label><input id="${id}-name" type="text" autocomplete="off" spellcheck="false"></div>
    <div class="field"><label for="${id}-kind">kind</label><select id="${id}-kind">${options.join("")}</select></div></div>
    <p class="fault" id="${id}-name-fault" role="alert"></p><div class="fields">${FIELDS.map((field) => fieldOf(id, field)).join("")}</div>
    <label class="check"><input id="${id}-global" type="checkbox"> all callers share it</label>`;
  const at = <T extends HTMLElement>(name: string) => element.querySelector<T>(`#${id}-${name}`)!;
  let shown: LimitForm;

  const tell = () => {
    const form: LimitForm = {
      ...shown,
      name: at<HTMLInputElement>("name").value,
      global: at<HTMLInputElement>("global").checked,
    };
    form.kind = at<HTMLSelectElement>("kind").value;
    for (const field of FIELDS) form[field] = at<HTMLInputElement>(field).value.trim();
    changed(form);
  };
  element.addEventListener("input", (event) => {
    const slider = event.target as HTMLInputElement;
    if (slider.type === "range") at<HTMLInputElement>(slider.dataset["of"]!).value = slider.value;
    tell();
  });

  return {
    element,
    show(form, faults) {
      shown = form;
      put(at("name"), form.name);
      at<HTMLSelectElement>("kind").value = form.kind;
      at<HTMLInputElement>("global").checked = form.global;
      const taken = fieldsOf(form.kind);
      for (const field of FIELDS) {
        const input = at<HTMLInputElement>(field);
        input.closest<HTMLElement>(".field")!.hidden = !taken.includes(field);
        at(`${field}-label`).textContent = field === "follows" ? "follows, recovers in" : wordFor(form.kind, field);
        put(input, form[field]);
        complain(input, at(`${field}-fault`), faults.get(wordFor(form.kind, field)) ?? faults.get(field));
        if (SLIDERS.includes(field)) slide(at(`${field}-slider`), Number(form[field] || form.rate));
      }
      const wrong = (["name", "kind"] as const).find((part) => faults.has(part)) ?? "name";
      complain(at(wrong === "name" ? "kind" : "name"), at("name-fault"), undefined);
      complain(at(wrong), at("name-fault"), faults.get(wrong));
    },
  };
}

/** Shows a fault beside its field, or none. */
export function complain(input: HTMLElement | null, place: HTMLElement, fault: string | undefined): void {
  place.textContent = fault ?? "";
  input?.setAttribute("aria-invalid", `${fault !== undefined}`);
  if (fault !== undefined) input?.setAttribute("aria-describedby", place.id);
}

/** Writes a value where nobody is writing it. */
export function put(input: HTMLInputElement | HTMLTextAreaElement, value: string): void {
  if (input.value !== value && input.value.trim() !== value) input.value = value;
}

function slide(slider: HTMLInputElement, value: number): void {
  if (!Number.isFinite(value)) return;
  // A slider that somebody moves keeps its scale.
  if (slider !== document.activeElement) slider.max = `${10 ** Math.max(1, Math.ceil(Math.log10(2 * value)))}`;
  slider.value = `${value}`;
}

function fieldOf(id: string, field: Field): string {
  const name = `${id}-${field}`;
  const slider = `<input id="${name}-slider" data-of="${field}" type="range" min="${field === "rate" ? 1 : 0}" max="100" aria-label="${field}">`;
  return `<div class="field"><label for="${name}" id="${name}-label">${field}</label>
    <input id="${name}" type="text" placeholder="${HINTS[field]}" autocomplete="off" spellcheck="false"${SLIDERS.includes(field) ? ' inputmode="decimal"' : ""}>
    ${SLIDERS.includes(field) ? slider : ""}<p class="fault" id="${name}-fault" role="alert"></p></div>`;
}
