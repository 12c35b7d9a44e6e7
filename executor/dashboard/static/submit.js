// The form that submits an execution of an action.

import { button, el } from "./dom.js";
import { now } from "./format.js";
import { ask } from "./api.js";
import { actionPath } from "./changes.js";
import { confirm, show } from "./dialog.js";
import { Problem } from "./problem.js";
import { checkedField, hasFields, jsonField, schemaFields, showBeside } from "./schema_form.js";
import { parametersSchemaOf } from "./schema_text.js";

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
      const request = form.request(ref);
      try {
        accepted = await ask("POST", "/executions", { text: request, headers: { "Idempotency-Key": key } });
      } catch (error) {
        throw error instanceof Problem ? form.shown(error) : error;
      }
    },
  });
  if (done) location.hash = `#/executions/${accepted.id}`;
}

function formOf(action) {
  const parameters = parametersPart(action);
  const metadata = jsonField("metadata", "Metadata",
    { rows: 2, hint: "A JSON object; stored with the execution, never interpreted.", isObject: true });
  const plain = (label, input, hint) => checkedField(label, input, hint, () => null);
  const key = plain("Concurrency key", el("input",
    { type: "text", name: "concurrency-key", maxlength: 255, autocomplete: "off", spellcheck: "false" }),
    "Optional; names the queue in which it waits.");
  const priority = plain("Priority", el("select", { name: "priority" },
    ["Default of the action", "1 (first)", "2", "3", "4", "5 (last)"]
      .map((label, index) => el("option", { value: index || "" }, label))));
  const delay = plain("Delay",
    el("input", { type: "text", name: "delay", autocomplete: "off", placeholder: "10m" }),
    "Optional; it starts after this time at the earliest. Examples: 30s, 10m, 1h30m.");
  const others = [["concurrency_key", key], ["priority", priority], ["run_at", delay],
    ["metadata", metadata]];
  return {
    fields: [parameters.node, action.submitter_keys ? key.node : null, priority.node, delay.node,
      metadata.node],
    /** The body of the request. What was typed as JSON is sent as it is: numbers keep all digits. */
    request(ref) {
      const members = [["action_ref", JSON.stringify(ref)], ["parameters", parameters.text()],
        ["metadata", metadata.text() ?? "{}"]];
      if (key.input.value) members.push(["concurrency_key", JSON.stringify(key.input.value)]);
      if (priority.input.value) members.push(["priority", priority.input.value]);
      const wait = delay.input.value.trim();
      if (wait) members.push(["run_at", JSON.stringify(new Date(now() + milliseconds(wait)).toISOString())]);
      return `{${members.map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(", ")}}`;
    },
    /** Show a problem beside the fields that it names; return the problem with the rest of its sentences. */
    shown(problem) {
      const { isShown, rest } = showBeside([...parameters.fields(), ...others], problem.message);
      if (!isShown) return problem;
      return new Problem(problem.status, problem.code,
        ["Some fields are not accepted; the reason is beside each", ...rest].join("; ") + ".");
    },
  };
}

/** The fields of the parameters, which can be exchanged for their JSON; JSON alone without a schema. */
function parametersPart(action) {
  const pointer = action.submitter_keys ? null : action.concurrency_key;
  const whole = jsonField("parameters", "Parameters", {
    rows: 7, isObject: true,
    hint: "A JSON object; passed to the action by name."
      + (pointer ? ` Its value at ${pointer} is the concurrency key.` : ""),
  });
  const asText = { node: whole.node, text: () => whole.text() ?? "{}",
    fields: () => [["parameters", whole]] };
  const schema = parametersSchemaOf(action);
  if (!hasFields(schema)) return asText;
  const form = schemaFields(schema, pointer);
  let used = { text: form.text, fields: () => form.fields };
  const node = el("fieldset", { class: "parameters" }, el("legend", {}, "Parameters"),
    form.nodes.length ? form.nodes : el("p", { class: "none" }, "The action takes no parameters."),
    button("Edit as JSON", () => {
      whole.input.value = form.partial();
      used = asText;
      node.replaceWith(whole.node);
      whole.input.focus();
    }));
  return { node, text: () => used.text(), fields: () => used.fields() };
}

function milliseconds(words) {
  if (!DURATION.test(words))
    throw new Problem(0, "invalid_message",
      `Delay: ${JSON.stringify(words)} is no duration. Examples: 30s, 10m, 1h30m.`);
  return [...words.matchAll(/(\d+(?:\.\d+)?)(ms|[smhd])/g)].reduce((sum, [, value, unit]) => sum
    + Number(value) * UNITS[unit], 0);
}
