// The form that submits an execution of an action, or retries one with other parameters.

import { button, el } from "./dom.js";
import { now } from "./format.js";
import { ask } from "./api.js";
import { actionPath } from "./changes.js";
import { confirm, show } from "./dialog.js";
import { writeJson } from "./json_text.js";
import { Problem } from "./problem.js";
import { checkedField, hasFields, isSecret, jsonField, schemaFields, showBeside } from "./schema_form.js";
import { parametersSchemaOf } from "./schema_text.js";

const UNITS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };
const DURATION = /^(?:\d+(?:\.\d+)?(?:ms|[smhd]))+$/;

/** Show the form, and open the new execution. */
export async function submitExecution(ref) {
  const action = await actionOf(ref, "Cannot submit");
  if (action === null) return;
  const form = formOf(action);
  await submitted(action, {
    title: `Submit an execution of ${ref}`, verb: "Submit", fields: form.fields, named: form.named,
    path: "/executions", request: () => form.request(ref),
  });
}

/** Show a form of the parameters of an ended execution, retry it with them, and open the new one. */
export async function retryEdited({ id, action_ref: ref, parameters: given }) {
  const action = await actionOf(ref, "Cannot retry");
  if (action === null) return;
  const parameters = parametersPart(action, given);
  await submitted(action, {
    title: `Retry execution ${id} with other parameters`, verb: "Retry execution",
    words: ["A new execution is added at the end of the queue. It names this one, which does not change."],
    fields: [parameters.node], named: parameters.fields, path: `/executions/${id}/retry`,
    request: () => `{"parameters": ${parameters.text()}}`,
  });
}

/** Return an action; null, after a dialog that says why, if it cannot be read. */
async function actionOf(ref, title) {
  try {
    return await ask("GET", actionPath(ref));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    show(title, el("p", { class: "wrong" }, error.message));
    return null;
  }
}

/** Ask with a form, send `request()`, and open the new execution. `named()` are the fields by their paths. */
async function submitted(action, { title, verb, words = [], fields, named, path, request }) {
  // Pressing the button again after a lost answer submits nothing twice.
  const key = `dashboard-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
  let accepted = null;
  const paused = action.paused ? ["The action is paused: the execution waits until it is resumed."] : [];
  const done = await confirm({
    title, verb, words: [...words, ...paused], fields,
    act: async () => {
      const text = request();
      try {
        accepted = await ask("POST", path, { text, headers: { "Idempotency-Key": key } });
      } catch (error) {
        throw error instanceof Problem ? besideFields(named(), error) : error;
      }
    },
  });
  if (done) location.hash = `#/executions/${accepted.id}`;
}

/** Show a problem beside the fields that it names; return the problem with the rest of its sentences. */
function besideFields(fields, problem) {
  const { isShown, rest } = showBeside(fields, problem.message);
  if (!isShown) return problem;
  return new Problem(problem.status, problem.code,
    ["Some fields are not accepted; the reason is beside each", ...rest].join("; ") + ".");
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
    named: () => [...parameters.fields(), ...others],
  };
}

/**
 * The fields of the parameters, which can be exchanged for their JSON; JSON alone without a schema. They hold
 * what is `given`, without secrets.
 */
function parametersPart(action, given = {}) {
  const pointer = action.submitter_keys ? null : action.concurrency_key;
  const schema = parametersSchemaOf(action);
  const secrets = Object.keys(given).filter((name) => isSecret(schema, name, given[name]));
  const copied = Object.fromEntries(Object.entries(given).filter(([name]) => !secrets.includes(name)));
  const whole = jsonField("parameters", "Parameters", {
    rows: 7, isObject: true,
    hint: "A JSON object; passed to the action by name."
      + (pointer ? ` Its value at ${pointer} is the concurrency key.` : "")
      + (secrets.length ? ` Secret, so not copied; give it again: ${secrets.join(", ")}.` : ""),
  });
  if (Object.keys(given).length) whole.input.value = writeJson(copied, 2);
  const asText = { node: whole.node, text: () => whole.text() ?? "{}",
    fields: () => [["parameters", whole]] };
  // A parameter without a field would be lost.
  if (!hasFields(schema) || !Object.keys(copied).every((name) => Object.hasOwn(schema.properties, name)))
    return asText;
  const form = schemaFields(schema, pointer, copied, secrets);
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
