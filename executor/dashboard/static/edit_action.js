// The form that changes the definition of an action, with a preview: each field that differs, and what
// happens to what waits and runs.

import { el, render } from "./dom.js";
import { count, counted } from "./format.js";
import { ask, exchange } from "./api.js";
import { actionPath } from "./changes.js";
import { confirm, field, show } from "./dialog.js";
import { slotsInUse } from "./parts.js";
import { Problem } from "./problem.js";

const USE = /^(\S+?)(?: +(\d+))?(?: +weight +(\d+))?$/;
const RATE = /^(\d+) +per +(\S+)$/;

const number = { type: "number",
  write: (value) => value ?? "", read: (words) => (words === "" ? null : Number(words)) };
const word = { type: "text", write: (value) => value ?? "", read: (words) => words || null };
const time = { type: "text", write: timeOf, read: (words) => words || null };
const rate = { type: "text", write: (value) => (value ? `${value.starts} per ${timeOf(value.per)}` : ""),
  read: (words) => words === "" ? null : matched(RATE, words, "10 per 1s", ([, starts, per]) =>
    ({ starts: Number(starts), per })) };
const uses = { type: "text", write: (value) => value.map(useText).join(", "),
  read: (words) => words.split(",").map((each) => each.trim()).filter(Boolean).map((each) =>
    matched(USE, each, "autocad 2", ([, resource, units = 1, weight = 1]) =>
      ({ resource, units: Number(units), weight: Number(weight) }))) };

/** Name, label, kind, hint, and effect(value, use): what happens when it has this value. */
const FIELDS = [
  ["max_concurrent", "Limit", number, "Of each key without a limit of its own. Empty: none.", limitEffect],
  ["max_concurrent_total", "Total over all keys", number, "Empty: none.", totalEffect],
  ["rate", "Rate of starts", rate, "Like 10 per 1s. Empty: none.", (value) => (value
    ? "What starts faster waits from now on." : "No rate keeps its executions waiting any more.")],
  ["uses", "Resources", uses, "Names with units, like autocad 2, partner-api.", () =>
    "What waits acquires these before it starts. Running executions keep what they hold."],
  ["timeout", "Timeout", time, "Of one attempt, like 5m. Empty: none.", () =>
    "Attempts that are granted from now on have it."],
  ["ttl", "Longest wait (ttl)", time, "Empty: none.",
    () => "Executions that are admitted from now on have it."],
  ["retry.max_attempts", "Attempts", number, "1: no retry.", retryEffect],
  ["retry.delay", "Wait before a retry", time, "", retryEffect],
  ["retry.factor", "Factor of each further wait", number, "", retryEffect],
  ["retry.max_delay", "Longest wait before a retry", time, "", retryEffect],
  ["pool", "Pool", word, "",
    (value) => `What waits goes to the workers of ${value}. Running executions go on.`],
];

/** Ask for changes of an action and make them, unless it was changed meanwhile. */
export async function editAction({ action_ref: ref }) {
  let read;
  let stats;
  try {
    [read, stats] = await Promise.all([exchange("GET", actionPath(ref)),
      ask("GET", `${actionPath(ref)}/queue-stats`)]);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    show(`Edit ${ref}`, el("p", { class: "wrong" }, error.message));
    return false;
  }
  const form = formOf(read.value, stats);
  return confirm({
    title: `Edit ${ref}`, verb: "Save changes", kind: "wide", fields: [form.node, form.preview],
    act: async () => {
      const body = form.changes();
      if (Object.keys(body).length === 0) throw new Problem(0, "invalid_message", "No field is changed.");
      await ask("PATCH", actionPath(ref), { body, headers: { "If-Match": read.etag } });
    },
  });
}

function formOf(action, use) {
  const keyed = action.concurrency_key !== null || action.submitter_keys;
  const inputs = FIELDS.filter(([name]) => keyed || name !== "max_concurrent_total").map((each) => {
    const [name, label, kind, hint] = each;
    const before = String(kind.write(valueOf(action, name)));
    const input = el("input", { type: kind.type, name, value: before, min: 0, step: "any",
      autocomplete: "off", spellcheck: "false" });
    return { each, before, input, node: field(label, input, hint) };
  });
  const preview = el("section", { class: "preview", role: "status", "aria-label": "What changes" });
  const changed = () => inputs.filter(({ input, before }) => input.value.trim() !== before);
  const lineOf = ({ each: [, label, kind, , effect], before, input }) => {
    const words = input.value.trim();
    let what;
    try {
      what = effect(kind.read(words), { ...use, keyed });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      what = error.message;
    }
    return el("li", {}, el("strong", {}, `${label}: ${before || "none"} → ${words || "none"}`), ` ${what}`);
  };
  const draw = () => render(preview, el("h3", {}, "What changes"), changed().length
    ? el("ul", {}, changed().map(lineOf)) : el("p", { class: "none" }, "Nothing yet."));
  const node = el("div", { class: "fields", on: { input: draw } }, inputs.map((each) => each.node));
  draw();
  return {
    node,
    preview,
    /** The fields that differ; of what is nested, the whole. */
    changes() {
      const body = {};
      for (const { each: [name, , kind], input } of changed()) {
        const [outer, inner] = name.split(".");
        const value = kind.read(input.value.trim());
        body[outer] = inner ? { ...action[outer], ...body[outer], [inner]: value } : value;
      }
      return body;
    },
  };
}

function valueOf(action, name) {
  return name.split(".").reduce((value, part) => value[part], action);
}

/** A limit, and what it does to what runs and waits. */
function limitEffect(limit, { keyed, queue_length: waiting, ...use }) {
  const used = slotsInUse(use);
  if (limit === 0) return `Nothing starts. ${goOn(used)}`;
  if (keyed)
    return limit === null ? "The keys have no limit." : "Of each key without a limit of its own: running "
      + `executions go on; nothing new starts until fewer than ${count(limit)} run.`;
  return boundEffect(limit, used, waiting);
}

function totalEffect(total, { queue_length: waiting, ...use }) {
  const used = slotsInUse(use);
  return total === 0 ? `Nothing starts. ${goOn(used)}` : boundEffect(total, used, waiting);
}

function boundEffect(limit, used, waiting) {
  if (limit !== null && used >= limit)
    return `${goOn(used)} Nothing new starts until fewer than ${count(limit)} run.`;
  const more = limit === null ? waiting : Math.min(limit - used, waiting);
  return more ? `${count(more)} of ${count(waiting)} waiting may start now, as far as other bounds allow.`
    : "Nothing waits that could start now.";
}

function goOn(used) {
  return used === 1 ? "1 running execution goes on." : `${counted(used, "running execution")} go on.`;
}

function retryEffect() {
  return "Failures from now on are retried like this.";
}

function timeOf(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [unit, size] = [["h", 3600], ["m", 60], ["s", 1]].find(([, each]) => seconds && seconds % each === 0)
    ?? ["s", 1];
  return `${seconds / size}${unit}`;
}

function useText({ resource, units, weight }) {
  const shown = [resource, (units > 1 || weight > 1) && units, weight > 1 && `weight ${weight}`];
  return shown.filter(Boolean).join(" ");
}

function matched(pattern, words, example, read) {
  const found = pattern.exec(words);
  if (!found) throw new Problem(0, "invalid_message", `${JSON.stringify(words)}: expected ${example}`);
  return read(found);
}
