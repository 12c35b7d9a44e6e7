// Fields for the parameters of an action, generated from their JSON Schema. In: a schema of an object. Out:
// the fields, and the JSON text of what was typed: numbers keep all their digits, and an empty field is left
// out. What has no field of its own, like lists and objects, is typed as JSON.

import { attribute, el, text } from "./dom.js";
import { field } from "./dialog.js";
import { localTime } from "./format.js";
import { readJson, writeJson } from "./json_text.js";
import { Problem } from "./problem.js";
import { propertiesOf, resolved, typeText } from "./schema_text.js";

const INTEGER = /^-?(?:0|[1-9]\d*)$/;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
const NOT_GIVEN = "";
/** What pydantic writes in place of a secret. */
const MASK = "**********";
/** Between two sentences of a problem: each begins with the path of its field, the last one is the remedy. */
const SENTENCE = /; (?=(?:parameters|metadata|concurrency_key|priority|run_at)[.:]|to see what it takes:)/;

/**
 * A field that shows faults beside it: `faultOf()` returns the first one of what was typed, or null.
 * `check()` shows and returns it, `show(words)` shows a fault that the API found.
 */
export function checkedField(label, input, hint, faultOf) {
  const node = field(label, input, hint);
  const fault = el("small", { class: "fault", id: `${input.id}-fault`, role: "status" });
  input.setAttribute("aria-describedby", [hint && `${input.id}-hint`, fault.id].filter(Boolean).join(" "));
  node.append(fault);
  const show = (words) => {
    text(fault, words);
    attribute(input, "aria-invalid", words ? "true" : null);
    return words;
  };
  const check = () => show(faultOf());
  input.addEventListener("input", check);
  return { node, input, check, show };
}

/** A text area for JSON, which names the first fault while one types. */
export function jsonField(name, label, { rows, hint, isObject = false, isRequired = false }) {
  const input = el("textarea", { name, rows, spellcheck: "false", class: "code" });
  const checked = checkedField(label, input, hint, () => {
    if (input.value.trim() === "") return isRequired ? "Required." : null;
    const { value, problem } = readJson(input.value);
    if (problem) return problem;
    return isObject && (value === null || typeof value !== "object" || Array.isArray(value))
      ? 'Expected an object, like {"name": "value"}.' : null;
  });
  return {
    ...checked,
    /** What was typed, or null without; throws Problem. */
    text() {
      const found = checked.check();
      if (found) {
        input.focus();
        throw new Problem(0, "invalid_message", `${label}: ${found}`);
      }
      return input.value.trim() || null;
    },
  };
}

/** Whether a schema names parameters, so that a form can be made of it. */
export function hasFields(schema) {
  return schema !== null && typeof schema.properties === "object" && !schema.anyOf && !schema.oneOf
    && !schema.allOf && !schema.$ref;
}

/** Whether the value of a parameter is a secret: as the schema says, or because it is only a mask. */
export function isSecret(schema, name, value) {
  const { writeOnly, format } = hasFields(schema) ? resolved(schema.properties[name], schema) : {};
  return writeOnly === true || format === "password" || value === MASK;
}

/**
 * The fields of a schema: `text()` returns the JSON object and throws Problem, `partial()` that of what is
 * typed correctly; `fields` are [path, field] pairs, by which faults that the API found are shown.
 * `keyPointer` names the concurrency key. A field that is left as it is keeps what is `given`; `secrets` are
 * parameters that were given and are to be given again.
 */
export function schemaFields(schema, keyPointer, given = {}, secrets = []) {
  const parts = propertiesOf(schema).map(([name, each], index) => {
    const isAgain = secrets.includes(name);
    const isRequired = isAgain || (schema.required ?? []).includes(name);
    const part = fieldOf(`parameter-${index}`, name, resolved(each, schema), schema, isRequired,
      keyPointer === `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`, isAgain);
    return [name, Object.hasOwn(given, name) ? filled(part, given[name]) : part];
  });
  const object = (members) => (members.length
    ? `{\n${members.map(([name, json]) => `  ${JSON.stringify(name)}: ${json}`).join(",\n")}\n}` : "{}");
  const typed = (some) => some.map(([name, part]) => [name, part.json()]).filter(([, json]) => json !== null);
  return {
    nodes: parts.map(([, part]) => part.node),
    fields: parts.map(([name, part]) => [`parameters.${name}`, part]),
    text() {
      const wrong = parts.filter(([, part]) => part.check());
      if (wrong.length) {
        wrong[0][1].input.focus();
        throw new Problem(0, "invalid_message", `Correct ${wrong.map(([name]) => name).join(", ")}.`);
      }
      return object(typed(parts));
    },
    partial: () => object(typed(parts.filter(([, part]) => !part.check()))),
  };
}

/** Fill a field with a stored value, which is sent unchanged unless the user edits the field. */
function filled(part, value) {
  const { input } = part;
  const json = writeJson(value);
  if (input.matches("select")) {
    if (![...input.options].some((each) => each.value === json))
      input.append(el("option", { value: json }, shown(value)));
    input.value = json;
  } else if (input.type === "datetime-local") input.value = localTime(value);
  else input.value = input.matches("textarea") ? writeJson(value, 2) : value === null ? "" : shown(value);
  const before = input.value;
  const isKept = () => input.value === before;
  return { ...part, json: () => (isKept() ? json : part.json()),
    check: () => (isKept() ? part.show(null) : part.check()) };
}

/** One field: `json()` returns the JSON of what was typed, or null where nothing was. */
function fieldOf(id, name, schema, whole, isRequired, isKey, isAgain) {
  const label = isRequired ? [name, " ", el("span", { class: "needed" }, "required")] : name;
  const empty = isRequired && schema.isNullable ? "null" : null;
  // A choice shows its values and its default itself.
  const isChoice = valuesOf(schema) !== null;
  const hint = [
    schema.description && ended(schema.description), !isChoice && ended(typeText(schema, whole)),
    isKey && "It is the concurrency key.",
    isAgain && "Secret, so not copied; give it again.",
    schema.format === "date-time" && "In your local time; sent as UTC.",
    !isChoice && schema.default !== undefined && `Default: ${writeJson(schema.default)}.`,
    empty && "Empty: null.",
  ].filter(Boolean).join(" ");
  const needs = isRequired && !schema.isNullable;
  const build = inputOf(id, schema, needs);
  if (build === null) {
    const part = jsonField(id, label, { rows: 3, hint: `${hint} Written as JSON.`, isRequired: needs });
    attribute(part.input, "aria-required", needs ? "true" : null);
    if (needs && schema.default !== undefined) part.input.value = writeJson(schema.default);
    return { ...part, json: () => part.input.value.trim() || empty };
  }
  const { input, read, expected } = build;
  // A default that the schema requires has to be sent.
  if (needs && schema.default !== undefined)
    input.value = input.matches("select") ? writeJson(schema.default) : schema.default;
  attribute(input, "aria-required", needs ? "true" : null);
  const part = checkedField(label, input, hint, () => {
    // A browser gives no value for a date that is not complete.
    if (input.validity.badInput) return `Expected ${expected}.`;
    if (input.value === "") return needs ? "Required." : null;
    return read(input.value) === null ? `Expected ${expected}.` : null;
  });
  return { ...part, json: () => (input.value === "" ? empty : read(input.value)) };
}

/**
 * The input of a schema; null: none fits. `read(value)` returns JSON, or null for what is not as `expected`.
 */
function inputOf(id, schema, needs) {
  const entry = (type, more = {}) => el("input",
    { type, name: id, autocomplete: "off", spellcheck: "false", placeholder: schema.default ?? null,
      ...more });
  const values = valuesOf(schema);
  if (values) return { input: choice(id, values, schema, needs), read: (json) => json, expected: "a value" };
  switch (schema.type) {
    case "integer":
      return { input: entry("text", { inputmode: "numeric" }), read: matching(INTEGER),
        expected: "a whole number" };
    case "number":
      return { input: entry("text", { inputmode: "decimal" }), read: matching(NUMBER), expected: "a number" };
    case "string":
      if (schema.format === "date-time") {
        return { input: entry("datetime-local", { step: 1, placeholder: null }), read: instant,
          expected: "a date and a time" };
      }
      if (schema.format === "date")
        return { input: entry("date", { placeholder: null }), read: JSON.stringify, expected: "a date" };
      if (schema.writeOnly || schema.format === "password") {
        return { input: entry("password", { autocomplete: "new-password" }), read: JSON.stringify,
          expected: "text" };
      }
      return { input: entry("text"), read: JSON.stringify, expected: "text" };
    default: return null;
  }
}

/** The values among which one chooses, or null. */
function valuesOf(schema) {
  return schema.const !== undefined ? [schema.const]
    : schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
}

/** A text as a sentence. */
function ended(words) {
  return `${words[0].toUpperCase()}${words.slice(1)}${words.endsWith(".") ? "" : "."}`;
}

function matching(pattern) {
  return (value) => (pattern.test(value.trim()) ? value.trim() : null);
}

/** A local time as the JSON of its instant. */
function instant(local) {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? null : JSON.stringify(at.toISOString());
}

function choice(id, values, schema, needs) {
  const first = needs ? "Choose" : schema.default !== undefined ? `Default: ${shown(schema.default)}`
    : "Not given";
  return el("select", { name: id }, el("option", { value: NOT_GIVEN }, first),
    values.map((value) => el("option", { value: writeJson(value) }, shown(value))));
}

function shown(value) {
  return typeof value === "string" ? value : writeJson(value);
}

/**
 * Show the sentences of a problem beside the fields that they name, like "parameters.size: expected a whole
 * number". Return the sentences that name none.
 */
export function showBeside(fields, detail) {
  const sentences = detail.split(SENTENCE);
  const byLength = [...fields].sort(([one], [other]) => other.length - one.length);
  const found = new Map();
  const rest = sentences.filter((sentence) => {
    const [path, part] = byLength.find(([path]) => sentence.startsWith(`${path}: `)
      || sentence.startsWith(`${path}.`)) ?? [];
    if (part) found.set(part, [...(found.get(part) ?? []), sentence.replace(`${path}: `, "")]);
    return !part;
  });
  for (const [part, words] of found) part.show(words.join("; "));
  fields.map(([, part]) => part).find((part) => found.has(part))?.input.focus();
  return { isShown: found.size > 0, rest };
}
