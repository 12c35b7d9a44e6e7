// What an operator may change from here; each asks first.

import { el } from "./dom.js";
import { ask, exchange, Problem } from "./api.js";
import { confirm, field } from "./dialog.js";

export function actionPath(ref) {
  return `/actions/${encodeURIComponent(ref)}`;
}

/** Pause or resume an action, whichever it needs. */
export function changePause({ action_ref: ref, paused }) {
  return confirm(paused
    ? {
      title: `Resume ${ref}?`, verb: "Resume",
      words: "Waiting executions start again, in order, as far as the limit allows.",
      act: () => ask("POST", `${actionPath(ref)}/resume`),
    }
    : {
      title: `Pause ${ref}?`, verb: "Pause",
      words: "New executions are still admitted and wait in line; nothing starts. What runs goes on.",
      act: () => ask("POST", `${actionPath(ref)}/pause`),
    });
}

/** Change the limit of an action; refused if somebody else changed the action meanwhile. */
export function changeLimit({ action_ref: ref, max_concurrent: limit, active_count: held }) {
  const before = exchange("GET", actionPath(ref)).catch((error) => error);
  const input = el("input", {
    type: "number", name: "limit", min: 0, max: 2147483647, step: 1, value: limit, inputmode: "numeric",
  });
  return confirm({
    title: `Limit of ${ref}`, verb: "Change the limit",
    words: [`Now: ${limit === null ? "none" : limit}. Held: ${held}. A change acts at once; nothing that runs is ended.`],
    fields: [field("At most so many at once", input, "For each queue. Empty: no limit. 0: nothing starts.")],
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
    title: `Cancel execution ${id}?`, verb: "Cancel the execution", dangerous: true,
    words: running ? "It runs: its worker is asked to stop it." : "It has not started and never will.",
    fields: [field("Reason", input, "Optional; it is kept with the execution.")],
    act: () => ask("POST", `/executions/${id}/cancel`, { body: input.value ? { reason: input.value } : {} }),
  });
}

/** Run an execution again, as a new one; goes to it. */
export async function retry(id) {
  let accepted = null;
  const key = `dashboard-retry-${id}-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
  const done = await confirm({
    title: `Run execution ${id} again?`, verb: "Run it again",
    words: "A new execution with the same parameters takes its place at the end of the line.",
    act: async () => {
      accepted = await ask("POST", `/executions/${id}/retry`, { headers: { "Idempotency-Key": key } });
    },
  });
  if (done && accepted.id) location.hash = `#/executions/${accepted.id}`;
}

/** Have a worker drain. */
export function drain(worker) {
  return confirm({
    title: `Drain ${worker.name}?`, verb: "Drain", dangerous: true,
    words: "It takes nothing new, finishes what it runs or hands it back, and leaves.",
    act: () => ask("POST", `/workers/${encodeURIComponent(worker.id)}/drain`),
  });
}

/** Have webhooks posted once more. `selection` is what the API takes. */
export function postAgain(selection, said) {
  return confirm({
    title: `Post ${said} again?`, verb: "Post again",
    words: "At once, and with all attempts before it. The event keeps its id: a receiver that has it knows the copy.",
    act: () => ask("POST", "/webhooks/replay", { body: selection }),
  });
}

/** Replay or purge dead letters. `selection` is what the API takes. */
export function deal(verb, selection, said) {
  const replays = verb === "replay";
  return confirm({
    title: replays ? `Replay ${said}?` : `Purge ${said}?`,
    verb: replays ? "Replay" : "Purge", dangerous: !replays,
    words: replays
      ? "They are published as they first came. A message that fails again becomes a new dead letter."
      : "They are deleted permanently.",
    act: () => ask("POST", `/dead-letters/${verb}`, { body: selection }),
  });
}

/** Replay one dead letter with another body. */
export function replayEdited({ id, body }) {
  const input = el("textarea", { name: "body", rows: 12, spellcheck: "false" });
  input.value = body;
  return confirm({
    title: `Edit and replay dead letter ${id}`, verb: "Replay",
    words: "The message is published with this body; its message ID and its other properties stay the same.",
    fields: [field("Body", input)],
    act: async () => {
      const dealt = await ask("POST", "/dead-letters/replay", { body: { ids: [id], body: input.value } });
      if (!dealt.done) throw new Problem(409, "not_found", dealt.refused[0]?.reason ?? "This dead letter is gone.");
    },
  });
}
