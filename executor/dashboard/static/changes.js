// The changes that an operator can make; each has a confirmation dialog.

import { el } from "./dom.js";
import { ask, exchange, Problem } from "./api.js";
import { confirm, field } from "./dialog.js";

export function actionPath(ref) {
  return `/actions/${encodeURIComponent(ref)}`;
}

/** Pause an action, or resume it if it is paused. */
export function changePause({ action_ref: ref, paused }) {
  return confirm(paused
    ? {
      title: `Resume ${ref}?`, verb: "Resume",
      words: "Waiting executions start in order, within the limit.",
      act: () => ask("POST", `${actionPath(ref)}/resume`),
    }
    : {
      title: `Pause ${ref}?`, verb: "Pause",
      words: "New executions are admitted and wait in the queue; nothing starts. Running executions continue.",
      act: () => ask("POST", `${actionPath(ref)}/pause`),
    });
}

/** Change the limit of an action; rejected if the action has been changed meanwhile. */
export function changeLimit({ action_ref: ref, max_concurrent: limit, active_count: held }) {
  const before = exchange("GET", actionPath(ref)).catch((error) => error);
  const input = el("input", {
    type: "number", name: "limit", min: 0, max: 2147483647, step: 1, value: limit, inputmode: "numeric",
  });
  return confirm({
    title: `Limit of ${ref}`, verb: "Change limit",
    words: [`Current limit: ${limit === null ? "none" : limit}. Slots in use: ${held}. A change takes effect immediately; running executions continue.`],
    fields: [field("Maximum concurrency", input, "Per queue. Empty: no limit. 0: nothing starts.")],
    act: async () => {
      const read = await before;
      if (read instanceof Error) throw read;
      await ask("PATCH", actionPath(ref), {
        body: { max_concurrent: input.value.trim() === "" ? null : Number(input.value) },
        headers: read.etag ? { "If-Match": read.etag } : {},
      });
    },
  });
}

/** Cancel an execution. */
export function cancel(id, running) {
  const input = el("input", { type: "text", name: "reason", maxlength: 1000 });
  return confirm({
    title: `Cancel execution ${id}?`, verb: "Cancel execution", dangerous: true,
    words: running ? "The execution is running. A cancel message is sent to its worker." : "The execution has not started and will not start.",
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

/** Drain a worker. */
export function drain(worker) {
  return confirm({
    title: `Drain ${worker.name}?`, verb: "Drain", dangerous: true,
    words: "The worker starts nothing new, finishes its running executions or hands them back, and stops.",
    act: () => ask("POST", `/workers/${encodeURIComponent(worker.id)}/drain`),
  });
}

/** Replay webhooks. `selection` is the request body of the API. */
export function replayWebhooks(selection, subject) {
  return confirm({
    title: `Replay ${subject}?`, verb: "Replay",
    words: "Delivered immediately, with a full set of attempts. The event keeps its ID, so that the receiver can detect the duplicate.",
    act: () => ask("POST", "/webhooks/replay", { body: selection }),
  });
}

/** Replay or purge dead letters. `selection` is the request body of the API. */
export function changeDeadLetters(verb, selection, subject) {
  const replays = verb === "replay";
  return confirm({
    title: replays ? `Replay ${subject}?` : `Purge ${subject}?`,
    verb: replays ? "Replay" : "Purge", dangerous: !replays,
    words: replays
      ? "The messages are published unchanged. A message that fails again becomes a new dead letter."
      : "The messages are deleted permanently.",
    act: () => ask("POST", `/dead-letters/${verb}`, { body: selection }),
  });
}

/** Replay one dead letter with another body. */
export function replayEdited({ id, body }) {
  const input = el("textarea", { name: "body", rows: 12, spellcheck: "false" });
  input.value = body;
  return confirm({
    title: `Edit and replay dead letter ${id}`, verb: "Replay",
    words: "The message is published with this body. Its message ID and other properties do not change.",
    fields: [field("Body", input)],
    act: async () => {
      const result = await ask("POST", "/dead-letters/replay", { body: { ids: [id], body: input.value } });
      if (!result.done) throw new Problem(409, "not_found", result.refused[0]?.reason ?? "This dead letter no longer exists.");
    },
  });
}
