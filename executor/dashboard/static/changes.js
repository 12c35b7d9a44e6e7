// The changes that an operator can make; each has a confirmation dialog.

import { el, say } from "./dom.js";
import { count, counted } from "./format.js";
import { ask, exchange } from "./api.js";
import { confirm, field, show } from "./dialog.js";
import { slotsInUse } from "./parts.js";
import { Problem } from "./problem.js";

/** The most that the API handles in one call. */
const WEBHOOKS_MAX = 1000;
const DEAD_LETTERS_MAX = 10000;
const TOKENS_PAGE = 1000;
const REASONS_SHOWN = 3;

export function actionPath(ref) {
  return `/actions/${encodeURIComponent(ref)}`;
}

/** Pause an action with all its keys, or resume it if it is paused. */
export function changePause({ action_ref: ref, concurrency_key: key = null, paused }) {
  const name = key === null ? ref : `all keys of ${ref}`;
  return pauseOrResume(actionPath(ref), name, paused, paused
    ? "Waiting executions start in order, within the limit."
    : "New executions are admitted and wait in the queue; nothing starts. Running executions continue.");
}

/** The route that changes the limit of a queue. */
export function limitRoute({ concurrency_key: key = null }) {
  return key === null ? "PATCH /actions/{ref}" : "PUT /actions/{ref}/keys/{key}";
}

/** Change the limit of a queue: that of its key, or of its action. */
export async function changeLimitOf(queue) {
  const { action_ref: ref, concurrency_key: key = null } = queue;
  if (key === null) return changeLimit(queue);
  try {
    return await changeKey(ref, key, await keyOwn(ref, key), queue);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    show(`Settings of key ${key}`, el("p", {}, error.message));
    return false;
  }
}

/** Change the limit of an action; rejected if the action has been changed meanwhile. */
function changeLimit(queue) {
  const { action_ref: ref, max_concurrent: limit } = queue;
  return changeNumber(actionPath(ref), "max_concurrent", {
    title: `Limit of ${ref}`, verb: "Change limit", value: limit, label: "Maximum concurrency",
    words: usedWords(queue),
    hint: "Of each key without a limit of its own. Empty: no limit. 0: nothing starts.",
  });
}

function usedWords({ max_concurrent: limit, by_key: keys = [], ...used }) {
  return `Current limit: ${limit ?? "none"}. Slots in use${keys.length ? " over all keys" : ""}: `
    + `${slotsInUse(used)}. A change takes effect immediately; running executions continue.`;
}

/**
 * Ask for a number, or nothing for null, and store it as `name` of the definition that was read when the
 * dialog opened.
 */
function changeNumber(path, name, { title, verb, words, label, hint, value }) {
  const before = exchange("GET", path).catch((error) => error);
  const input = el("input", { type: "number", name: "limit", min: 0, max: 2147483647, step: 1, value,
    inputmode: "numeric" });
  return confirm({
    title, verb, words,
    fields: [field(label, input, hint)],
    act: async () => {
      const read = await before;
      if (read instanceof Error) throw read;
      await ask("PATCH", path, {
        body: { [name]: input.value.trim() === "" ? null : Number(input.value) },
        headers: read.etag ? { "If-Match": read.etag } : {},
      });
    },
  });
}

/** Pause a resource, or resume it if it is paused. */
export function changeResourcePause({ name, paused }) {
  return pauseOrResume(`/resources/${encodeURIComponent(name)}`, name, paused, paused
    ? "Waiting executions of the actions that use it start in order, within the capacity."
    : "Nothing that uses this resource starts until it is resumed. Running executions continue and "
      + "keep their units.");
}

/** Pause a pool, or resume it if it is paused. */
export function changePoolPause({ name, paused }) {
  return pauseOrResume(`/pools/${encodeURIComponent(name)}`, name, paused, paused
    ? "Waiting executions of its actions start in order, as many as its workers run."
    : "Nothing in this pool starts until it is resumed. Running executions continue.");
}

/** Pause a schedule, or resume it if it is paused. */
export function changeSchedulePause({ name, paused }) {
  return pauseOrResume(`/schedules/${encodeURIComponent(name)}`, name, paused, paused
    ? "Its occurrences count from now on: those of the pause do not run."
    : "No occurrence counts until it is resumed. Its executions continue.");
}

/** Run a schedule now. */
export function runSchedule({ name }) {
  const act = () => ask("POST", `/schedules/${encodeURIComponent(name)}/run`);
  const words = "One execution is submitted beside its occurrences, with the same parameters.";
  return confirm({ title: `Run ${name} now?`, verb: "Run now", words, act });
}

function pauseOrResume(path, name, paused, words) {
  const verb = paused ? "Resume" : "Pause";
  const act = () => ask("POST", `${path}/${verb.toLowerCase()}`);
  return confirm({ title: paused ? `Resume ${name}?` : `Pause ${name}?`, verb, words, act });
}

/** Change the capacity of a resource; rejected if the resource has been changed meanwhile. */
export function changeCapacity({ name, capacity, held }) {
  return changeNumber(`/resources/${encodeURIComponent(name)}`, "capacity", {
    title: `Capacity of ${name}`, verb: "Change capacity", value: capacity, label: "Capacity",
    words: `Current capacity: ${capacity ?? "no limit"}. Units in use: ${held}. A change takes effect `
      + "immediately; running executions keep their units.",
    hint: "Units. Empty: no limit. 0: nothing that uses it starts.",
  });
}

/** The settings of a concurrency key; null if it has none. */
export async function keyOwn(ref, key, signal) {
  try {
    return await ask("GET", keyPath(ref, key), { signal });
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

function keyPath(ref, key) {
  return `${actionPath(ref)}/keys/${encodeURIComponent(key)}`;
}

/**
 * Give a concurrency key its own limit and weight; `own` are its present settings, null if it has none, and
 * `queue` is its queue, where that is shown.
 */
export function changeKey(ref, key, own, queue = null) {
  const limits = [["action", "As the action"], ["none", "No limit"], ["own", "Its own"]];
  const kind = el("select", { name: "kind" },
    limits.map(([value, words]) => el("option", { value, selected: value === limitKind(own) }, words)));
  const limit = el("input", { type: "number", name: "limit", min: 0, max: 2147483647, step: 1,
    value: own?.has_limit ? own.max_concurrent : null, inputmode: "numeric" });
  const weight = el("input", { type: "number", name: "weight", min: 1, max: 16, step: 1,
    value: own?.weight ?? 1, inputmode: "numeric", required: true });
  const enable = () => { limit.disabled = kind.value !== "own"; limit.required = kind.value === "own"; };
  kind.addEventListener("change", enable);
  enable();
  return confirm({
    title: `Settings of key ${key}`, verb: "Save",
    words: [`They apply to this key of ${ref} in place of those of the action, and take effect immediately.`,
      ...(queue === null ? [] : [usedWords(queue)])],
    fields: [
      field("Limit", kind, "How many executions of this key may run at once."),
      field("Maximum concurrency of this key", limit, "0: nothing of this key starts."),
      field("Weight", weight, "Its share of the total of the action, if the action has the order fair."),
    ],
    act: () => {
      const settings = { weight: Number(weight.value) };
      if (kind.value !== "action")
        settings.max_concurrent = kind.value === "none" ? null : Number(limit.value);
      return ask("PUT", keyPath(ref, key), { body: settings });
    },
  });
}

function limitKind(own) {
  if (!own?.has_limit) return "action";
  return own.max_concurrent === null ? "none" : "own";
}

/** Delete the settings of a concurrency key. */
export function deleteKey(ref, key) {
  return confirm({
    title: `Delete the settings of key ${key}?`, verb: "Delete settings", dangerous: true,
    words: `The key has the limit of ${ref} again, and the weight 1.`,
    act: () => ask("DELETE", keyPath(ref, key)),
  });
}

/** Revoke a token; resolves to whether it was revoked. Throws Problem if its use cannot be read. */
export async function revokeToken(token) {
  const { id, name, role } = token;
  const warnings = await warningsOf(token);
  return confirm({
    title: `Revoke token ${id} of ${name}?`, verb: "Revoke", dangerous: true,
    words: [`The token has the role ${role}. Every executor refuses it within two seconds, for good; it `
      + "stays in the list.", ...warnings.map((words) => el("strong", {}, words))],
    act: () => ask("DELETE", `/tokens/${id}`),
  });
}

/** What is lost with a token: the access of this page, or that of the last admin. */
async function warningsOf({ id, role }) {
  const own = await ask("GET", "/whoami");
  const warnings = [];
  if (own.id === id) warnings.push("This page uses the token: it will prompt for another one.");
  const isFixedAdmin = own.id === null && own.role === "admin";
  if (role === "admin" && !isFixedAdmin && !await hasOtherAdmin(id)) {
    warnings.push("No other valid token in the database has the role admin. Create one first: executor "
      + "tokens create NAME --role admin. Afterwards only executor tokens create NAME --role admin --direct "
      + "can, with access to the database.");
  }
  return warnings;
}

async function hasOtherAdmin(id) {
  let cursor = null;
  do {
    const page = await ask("GET", "/tokens", { query: { limit: TOKENS_PAGE, cursor } });
    if (page.items.some((each) => each.id !== id && each.role === "admin" && each.state === "valid"))
      return true;
    cursor = page.next_cursor;
  } while (cursor !== null);
  return false;
}

/** Cancel an execution. */
export function cancel(id, running) {
  const input = el("input", { type: "text", name: "reason", maxlength: 1000 });
  return confirm({
    title: `Cancel execution ${id}?`, verb: "Cancel execution", dangerous: true,
    words: running ? "The execution is running. A cancel message is sent to its worker."
      : "The execution has not started and will not start.",
    fields: [field("Reason", input, "Optional; stored with the execution.")],
    act: () => ask("POST", `/executions/${id}/cancel`, { body: input.value ? { reason: input.value } : {} }),
  });
}

/** Retry an execution as a new one, and open it. */
export async function retry(id) {
  let accepted = null;
  const key = `dashboard-retry-${id}-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
  const done = await confirm({
    title: `Retry execution ${id}?`, verb: "Retry execution",
    words: "A new execution with the same parameters is added at the end of the queue.",
    act: async () => {
      accepted = await ask("POST", `/executions/${id}/retry`, { headers: { "Idempotency-Key": key } });
    },
  });
  if (done && accepted.id) location.hash = `#/executions/${accepted.id}`;
}

/** Drain worker processes of one name. */
export function drain(workers) {
  const running = workers.reduce((sum, each) => sum + each.running, 0);
  return confirm({
    title: `Drain ${ofName(workers)}?`, verb: "Drain", dangerous: true,
    words: [`Running: ${counted(running, "attempt")}.`,
      "A worker that drains starts nothing new, finishes its running executions or returns them to their "
        + "queues, and stops."],
    act: () => eachWorker(workers, "drain"),
  });
}

/** Acknowledge the loss of worker processes of one name. */
export function acknowledge(workers) {
  return confirm({
    title: `Acknowledge the loss of ${ofName(workers)}?`, verb: "Acknowledge",
    words: ["The loss needs no more attention, and is counted no more. Executions are not affected."],
    act: () => eachWorker(workers, "acknowledge"),
  });
}

function ofName(workers) {
  const [{ name }] = workers;
  return workers.length === 1 ? name : `${count(workers.length)} workers with the name ${name}`;
}

function eachWorker(workers, verb) {
  return Promise.all(workers.map(({ id }) => ask("POST", `/workers/${encodeURIComponent(id)}/${verb}`)));
}

/**
 * Replay webhooks. `selection` is the request body of the API; `subjectOf(count)` names what is replayed.
 * Resolves to the result, or null.
 */
export function replayWebhooks(selection, subjectOf) {
  return changeCounted("/webhooks/replay", selection,
    { max: WEBHOOKS_MAX, name: "replay", verb: "replayed", missing: "no webhook of this execution" },
    (matched) => ({
      title: `Replay ${subjectOf(matched)}?`, verb: "Replay",
      words: ["Delivered immediately, with a full set of attempts. The event keeps its ID, so that the "
        + "receiver can detect the duplicate.",
        ...(selection.all ? ["Webhooks that fail from now on are not replayed."] : [])],
    }));
}

/**
 * Replay or purge dead letters. `selection` is the request body of the API; `subjectOf(count)` names what is
 * changed. Resolves to the result, or null.
 */
export function changeDeadLetters(name, selection, subjectOf) {
  const replays = name === "replay";
  const verb = replays ? "replayed" : "purged";
  const words = { max: DEAD_LETTERS_MAX, name, verb, missing: "no longer stored" };
  return changeCounted(`/dead-letters/${name}`, selection, words, (matched, { missing }) => ({
    title: replays ? `Replay ${subjectOf(matched)}?` : `Purge ${subjectOf(matched)}?`,
    verb: replays ? "Replay" : "Purge", dangerous: !replays,
    words: [
      replays ? "The messages are published unchanged. A message that fails again becomes a new dead letter."
        : "The messages are deleted permanently.",
      ...(missing.length ? [`No longer stored: ${count(missing.length)} of the selected messages.`] : []),
      ...(selection.ids ? [] : [`Dead letters that arrive from now on are not ${verb}.`]),
    ],
  }));
}

/**
 * Count what a change would handle, confirm that number, and request the change, the oldest first, until as
 * many are handled; a call handles at most `words.max`. `dialogOf(matched, planned)` is the dialog. Resolves
 * to {text, isComplete}, or null if nothing was requested. Throws Problem if the count fails.
 */
async function changeCounted(path, selection, words, dialogOf) {
  const planned = await ask("POST", path, { body: { ...selection, dry_run: true } });
  const confirmed = planned.left;
  const total = { done: 0, missing: planned.missing, left: null,
    refused: new Map(planned.refused.map(({ id, reason }) => [id, reason])) };
  if (confirmed === 0)
    return { text: total.refused.size + total.missing.length ? resultText({ ...total, left: 0 }, words)
      : `Nothing to ${words.name}.`, isComplete: false };
  total.refused.clear();
  let problem = null;
  await confirm({
    ...dialogOf(confirmed, planned),
    act: async () => {
      try {
        await handle(path, selection, confirmed, words, total);
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        // The dialog closes: what was handled may be unknown, so the number is to be counted again.
        problem = error.message;
      }
    },
  });
  if (problem) return { text: `${count(total.done)} ${words.verb}, then: ${problem}`, isComplete: false };
  return total.left === null ? null : { text: resultText(total, words),
    isComplete: !(total.refused.size + total.missing.length + total.left) };
}

/** Request a change until `confirmed` of what is selected are handled; `total` receives the result. */
async function handle(path, selection, confirmed, words, total) {
  let atFirst = null;
  let page;
  do {
    // What is refused stays at the head of the list, so each call selects it again.
    const limit = Math.min((atFirst ?? confirmed) - total.done, words.max);
    page = await ask("POST", path, { body: { ...selection, limit } });
    total.done += page.done;
    for (const { id, reason } of page.refused) total.refused.set(id, reason);
    atFirst ??= Math.min(confirmed, page.done + page.refused.length + page.left);
    total.missing = page.missing;
    total.left = Math.max(atFirst - total.done - total.refused.size, 0);
    say(`${count(total.done)} ${words.verb}`);
  } while (page.left && page.done && total.left);
}

function resultText({ done, refused, missing, left }, { verb, missing: why }) {
  const reasons = [...refused].slice(0, REASONS_SHOWN).map(([id, reason]) => `${id}: ${reason}`);
  const more = refused.size > REASONS_SHOWN ? `; and ${count(refused.size - REASONS_SHOWN)} more` : "";
  return `${[
    `${count(done)} ${verb}`,
    missing.length && `${count(missing.length)} not found (${why})`,
    left && `${count(left)} left: repeat it`,
    refused.size && `${count(refused.size)} refused: ${reasons.join("; ")}${more}`,
  ].filter(Boolean).join(", ")}.`;
}

/** Replay one dead letter with another body; resolves to the result like that of `changeDeadLetters`. */
export async function replayEdited({ id, body }) {
  const input = el("textarea", { name: "body", rows: 12, spellcheck: "false" });
  input.value = body;
  const isDone = await confirm({
    title: `Edit and replay dead letter ${id}`, verb: "Replay",
    words: "The message is published with this body. Its message ID and other properties do not change.",
    fields: [field("Body", input)],
    act: async () => {
      const result = await ask("POST", "/dead-letters/replay", { body: { ids: [id], body: input.value } });
      if (!result.done)
        throw new Problem(409, "not_found", result.refused[0]?.reason
          ?? "This dead letter no longer exists.");
    },
  });
  return isDone ? { text: "1 replayed.", isComplete: true } : null;
}
