// The form that submits an execution of an action.

import { attribute, el, text } from "./dom.js";
import { now } from "./format.js";
import { ask, Problem } from "./api.js";
import { confirm, field, show } from "./dialog.js";
import { actionPath } from "./changes.js";
import { readJson } from "./json_text.js";

const UNITS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };
const DURATION = /^(?:\d+(?:\.\d+)?(?:ms|[smhd]))+$/;

/** Show the form, and open the new execution. */
export async function submitExecution(ref) {
  let action;
  try {
    action = await ask("GET", actionPath(ref));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    show("Cannot submit", el("p", { class: "wrong" }, error.message));
    return;
  }
  const form = formOf(action);
  // Pressing the button again after a lost answer submits nothing twice.
  const key = `dashboard-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
  let accepted = null;
  const done = await confirm({
    title: `Submit an execution of ${ref}`, verb: "Submit",
    words: action.paused ? "The action is paused: the execution waits until it is resumed." : [],
    fields: form.fields,
    act: async () => {
      accepted = await ask("POST", "/executions", { text: form.request(ref), headers: { "Idempotency-Key": key } });
    },
  });
  if (done) location.hash = `#/executions/${accepted.id}`;
}

function formOf(action) {
  const pointer = action.submitter_keys ? null : action.concurrency_key;
  const parameters = objectInput("parameters", "Parameters", 7,
    `A JSON object; passed to the action by name.${pointer ? ` Its value at ${pointer} is the concurrency key.` : ""}`);
  const metadata = objectInput("metadata", "Metadata", 2, "A JSON object; stored with the execution, never interpreted.");
  const key = el("input", { type: "text", name: "concurrency-key", maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const priority = el("select", { name: "priority" },
    ["Default of the action", "1 (first)", "2", "3", "4", "5 (last)"].map((label, index) => el("option", { value: index || "" }, label)));
  const delay = el("input", { type: "text", name: "delay", autocomplete: "off", placeholder: "10m" });
  return {
    fields: [
      parameters.node,
      action.submitter_keys ? field("Concurrency key", key, "Optional; names the queue in which it waits.") : null,
      field("Priority", priority),
      field("Delay", delay, "Optional; it starts after this time at the earliest. Examples: 30s, 10m, 1h30m."),
      metadata.node,
    ],
    /** The body of the request. What was typed as JSON is sent as it is: numbers keep all digits. */
    request(ref) {
      const members = [["action_ref", JSON.stringify(ref)], ["parameters", parameters.text()], ["metadata", metadata.text()]];
      if (key.value) members.push(["concurrency_key", JSON.stringify(key.value)]);
      if (priority.value) members.push(["priority", priority.value]);
      if (delay.value.trim()) members.push(["run_at", JSON.stringify(new Date(now() + milliseconds(delay.value.trim())).toISOString())]);
      return `{${members.map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(", ")}}`;
    },
  };
}

/** A text area for a JSON object, which names the first fault while one types. */
function objectInput(name, label, rows, hint) {
  const input = el("textarea", { name, rows, spellcheck: "false", class: "code" });
  const fault = el("small", { class: "fault", id: `field-${name}-fault`, role: "status" });
  const node = field(label, input, hint);
  const faultOf = () => {
    if (input.value.trim() === "") return null;
    const { value, problem } = readJson(input.value);
    if (problem) return problem;
    return value === null || typeof value !== "object" || Array.isArray(value) ? 'Expected an object, like {"name": "value"}.' : null;
  };
  const check = () => {
    const found = faultOf();
    text(fault, found);
    attribute(input, "aria-invalid", found ? "true" : null);
    return found;
  };
  input.addEventListener("input", check);
  input.setAttribute("aria-describedby", `field-${name}-hint field-${name}-fault`);
  node.append(fault);
  return {
    node,
    /** The JSON text; throws Problem. */
    text() {
      const found = check();
      if (found) {
        input.focus();
        throw new Problem(0, "invalid_message", `${label}: ${found}`);
      }
      return input.value.trim() || "{}";
    },
  };
}

function milliseconds(words) {
  if (!DURATION.test(words)) throw new Problem(0, "invalid_message", `Delay: ${JSON.stringify(words)} is no duration. Examples: 30s, 10m, 1h30m.`);
  return [...words.matchAll(/(\d+(?:\.\d+)?)(ms|[smhd])/g)].reduce((sum, [, value, unit]) => sum + Number(value) * UNITS[unit], 0);
}
