// The screen of one execution: status, history, why it waits, attempts and logs.

import { button, el, render, say } from "./dom.js";
import { between, count, counted, duration, now } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { auditLogOf } from "./audit_log.js";
import { cancel, retry } from "./changes.js";
import { loader } from "./list.js";
import { logPart } from "./logs.js";
import { afterChange, badge, elapsed, errorLine, executionLink, gateLink, head, instant, listOf, none,
  poolLink, queueLink, section, shortId, stoppingWords, termsOf, trail, workerLink } from "./parts.js";
import { retryEdited } from "./submit.js";
import { table } from "./table.js";

/** So long after the grant of its slot, an execution that its worker has not started is shown as such. */
const UNSTARTED_MILLISECONDS = 30000;
const HELD_BY = ", held by ";
const ENDS = ["completed", "failed", "timeout", "cancelled", "expired", "abandoned"];
const PRIORITIES = { 1: "1 (first)", 5: "5 (last)" };
const STEPS = [
  ["created_at", "Created"], ["queued_at", "Queued"], ["scheduled_at", "Slot granted"],
  ["started_at", "Started"], ["completed_at", "Ended"],
];

const ATTEMPTS = [
  ["Attempt", "row", (each) => each.attempt],
  ["Outcome", "", (each) => badge(each.outcome ?? "running")],
  ["Worker", "", (each) => shortId(each.worker_id)],
  ["Started", "", (each) => instant(each.started_at)],
  ["Duration", "number", (each) => (each.ended_at ? duration(between(each.started_at, each.ended_at))
    : elapsed(each.started_at))],
  ["Progress", "", (each) => progressOf(each.progress) ?? "–"],
  ["Error", "", (each) => (each.error ? el("span", {}, el("strong", {}, each.error.type),
    ` ${each.error.message}`) : "–")],
];

/** How far an attempt has come: a bar, if it knows its total, and its message. */
function progressOf(progress) {
  if (!progress) return null;
  const { done, total, message } = progress;
  const words = total === null ? count(done) : `${count(done)} of ${count(total)}`;
  return el("div", { class: "progress" },
    total === null ? null
      : el("progress", { max: total || 1, value: total ? Math.min(done, total) : 1,
        "aria-label": "Progress" }),
    el("span", {}, words), message && el("span", { class: "words" }, message),
    el("span", { class: "none" }, instant(progress.updated_at)));
}

const GATES = [
  ["Gate", "row", (each) => gateLink(each.gate)],
  ["Units", "number", (each) => count(each.units)],
  ["Arrived", "", (each) => instant(each.arrived_at)],
  ["Passed", "", (each) => (each.passed_at ? instant(each.passed_at)
    : none(!each.waits ? "with the next gate" : each.ended_at ? "ended here" : "waits here"))],
  ["Waited", "number", (each) => (each.passed_at ?? each.ended_at
    ? duration(between(each.arrived_at, each.passed_at ?? each.ended_at)) : elapsed(each.arrived_at))],
];

export function show(main, { id }, { live, signal }) {
  const wrong = errorLine();
  const state = el("span", { class: "states" });
  const why = el("div", { class: "why" });
  const progress = el("div", { class: "far" });
  const facts = el("dl", { class: "metrics" });
  const steps = el("ol", { class: "timeline" });
  const buttons = el("div", { class: "buttons" });
  const documents = el("div", { class: "documents" });
  const attempts = table("Attempts", ATTEMPTS, { empty: "No attempts.", keyOf: (each) => each.attempt });
  const gates = table("Gates, in order", GATES, { keyOf: (each) => each.gate });
  const gatesPart = el("section", { hidden: true }, el("h2", {}, "Gates"), gates.node);
  const logs = logPart(id, signal);
  let known = null;
  let reason = null;
  /** Announces each change of the status, and each other reason to wait: a position that changes is none. */
  function announce(it) {
    const now = it.stopping ? "stopping" : it.waiting_on
      && [it.waiting_on.reason, it.waiting_on.gate, it.waiting_on.closed, it.waiting_on.max_concurrent === 0]
        .join(" ");
    const news = [];
    if (known !== null && known !== it.status) news.push(`Execution ${id} is ${it.status}.`);
    if (now && now !== reason) news.push(why.querySelector("p").textContent);
    if (news.length) say(news.join(" "));
    reason = now;
  }
  const loading = loader(async (mine) => {
    const it = await ask("GET", `/executions/${id}`, { signal: mine });
    render(state, badge(it.status), it.stopping && badge("stopping"));
    render(facts, factsOf(it));
    render(steps, stepsOf(it));
    render(why, whyOf(it));
    render(progress, !it.completed_at && progressOf(it.progress));
    attempts.update(it.attempts);
    gatesPart.hidden = !it.gates;
    // It waits at the last one of which the time is not known.
    gates.update((it.gates ?? []).map((each, n, all) => ({ ...each, waits: n === all.length - 1,
      ended_at: it.completed_at })));
    render(documents, documentsOf(it));
    render(buttons, buttonFor(it, loading.now));
    announce(it);
    known = it.status;
    logs.update(ENDS.includes(it.status));
  }, { every: 1000, signal, wrong });

  live.on("executions", loading.soon, signal);
  // The position changes with the queue, until the execution has ended.
  live.on("queues", () => !ENDS.includes(known) && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  main.append(
    trail("#/executions", "Executions"), head([`Execution #${id}`, state], buttons),
    wrong, why, el("div", { class: "panel" }, progress, facts, steps),
    section("Attempts", attempts.node), gatesPart,
    logs.node, documents, auditLogOf({ subject_kind: "execution", subject: id }, signal));
  loading.now();
}

function buttonFor(it, reload) {
  const { id, status } = it;
  const route = "POST /executions/{execution_id}";
  if (ENDS.includes(status)) {
    return [button("Edit and retry", () => retryEdited(it), { needs: `${route}/retry` }),
      button("Retry", () => retry(id), { needs: `${route}/retry` })];
  }
  return button("Cancel", () => afterChange(cancel(id, status === "running"), "Cancelled", reload),
    { class: "danger", needs: `${route}/cancel` });
}

function factsOf(it) {
  const facts = [
    ["Action", el("a", { href: queueLink(it) }, it.action_ref)],
    it.concurrency_key !== null && ["Key", it.concurrency_key],
    ["Priority", PRIORITIES[it.priority] ?? count(it.priority)],
    ["Attempt", count(it.attempt)],
    it.worker_id && ["Worker", el("a", { class: "id", href: workerLink(it.worker_id) }, it.worker_id)],
    it.idempotency_key && ["Idempotency key", it.idempotency_key],
    it.run_at && ["Earliest start", instant(it.run_at)],
    it.expires_at && !it.completed_at && ["Expires", instant(it.expires_at)],
    it.retry_of && ["Retry of", executionLink(it.retry_of)],
  ];
  return termsOf(facts);
}

/** The steps, each with the time since the previous one. */
function stepsOf(it) {
  let before = null;
  return STEPS.map(([field, name]) => {
    const at = it[field];
    const gap = between(before, at);
    if (at) before = at;
    const label = field === "completed_at" && at ? it.status : name;
    return el("li", { class: at ? `done ${field === "completed_at" ? it.status : ""}` : "" },
      el("span", { class: "step" }, label),
      at ? instant(at) : none(it.completed_at ? "never" : "not yet"),
      gap !== null && gap >= 0 ? el("span", { class: "gap" }, `after ${duration(gap)}`) : null);
  });
}

/** Why the execution waits, and its estimated start. */
function whyOf(it) {
  const on = it.waiting_on;
  if (it.stopping) return [el("p", {}, stoppingWords(it.stopping))];
  if (!on) return it.error
    ? [el("p", { class: it.status === "cancelled" ? "ended" : "wrong" }, el("strong", {}, it.error.type),
      ` ${it.error.message}`)] : [];
  const position = it.position
    ? `Position ${count(it.position)}${it.queue_length ? ` of ${count(it.queue_length)}` : ""} in the queue. `
      : "";
  return [el("p", {}, position, ...reasonOf(on)), ...startOf(it)];
}

function reasonOf(on) {
  switch (on.reason) {
    case "limit":
      return on.max_concurrent === 0 ? ["The limit is 0: nothing starts."]
        : [`${count(on.active_count)} of ${count(on.max_concurrent)} slots in use`,
          ...holdersOf(on.holders ?? []), ".", ...rootCause(on.root_cause)];
    case "total": case "resource": return gateOf(on);
    case "rate":
      return [`Waits for the rate of ${on.rate_of === "action" ? "its action" : on.rate_of}: `,
        `${count(on.starts)} starts per ${duration(on.per_seconds)}. `,
        ...(on.next_start_at ? ["Next start: ", instant(on.next_start_at), ". "] : []),
        ...positionOf(on, " of its action")];
    case "paused": return ["The action is paused: nothing starts until it is resumed."];
    case "no_worker": return [`No live worker in the pool ${on.pool} serves the action. ${workerRemedy(on)}`];
    case "pool": return poolOf(on);
    case "not_due": return on.run_at ? ["Due ", instant(on.run_at), "."] : ["Not due yet."];
    case "handing_over":
      if (on.granted_at && now() - Date.parse(on.granted_at) > UNSTARTED_MILLISECONDS)
        return ["Granted ", instant(on.granted_at), ", and its worker, which has a free slot, has not "
          + "started it: see its log and /readyz."];
      return [`About to start at a worker in the pool ${on.pool}.`];
    case "unavailable": return [`Cannot reach the ${on.part}: ${on.message}`];
    default: return [`Waiting: ${on.reason}.`];
  }
}

/** A worker of another pool may have the action: its pool was changed in one place only. */
function workerRemedy(on) {
  const others = on.other_pools ?? [];
  if (!others.length) return `Start one: TURNSTILE_WORKER_POOLS=${on.pool} worker serve --actions MODULE`;
  const having = others.length === 1 ? `A worker in the pool ${others[0]} has it`
    : `Workers in the pools ${others.join(", ")} have it`;
  const both = `TURNSTILE_WORKER_POOLS=${others[0]},${on.pool}`;
  return `${having}: let one serve both pools (${both}), or change the pool of the action.`;
}

function poolOf(on) {
  const pool = ["the pool ", poolLink(on.pool)];
  const position = on.position ? [" ", ...positionOf(on, " there")] : [];
  if (on.closed) {
    return ["Waits for ", ...pool, ", which is paused: nothing starts until it is resumed.", ...position];
  }
  if (on.held < on.capacity) return ["Waits for its turn in ", ...pool, ".", ...position];
  const holders = holdersOf(on.holders ?? []);
  return [`All ${count(on.capacity)} worker slots of `, ...pool, " are in use", ...holders, ".", ...position];
}

function gateOf(on) {
  const name = on.gate === "total" ? ["The total of its action"] : ["The ", ...gateLink(on.gate)];
  const needs = `needs ${counted(on.units, "unit")}`;
  switch (on.closed) {
    case "paused": return [...name, " is paused: nothing starts until it is resumed."];
    case "capacity_zero": return [...name, " has the capacity 0: nothing starts."];
    case "capacity_too_low": return [...name,
      ` has the capacity ${count(on.capacity)}; the execution ${needs}.`];
  }
  const free = on.capacity === null ? "" : `, ${count(on.free)} of ${count(on.capacity)} free`;
  const holders = on.holders.map((each) => [executionLink(each.id), ` (${count(each.units)})`]);
  const { first } = on;
  const ahead = first && on.free !== null && on.free >= on.units
    ? [", but ", executionLink(first.id), ` is ahead and needs ${count(first.units)}`] : [];
  return [...name, `: the execution ${needs}${free}`, ...ahead, ...listOf(holders, HELD_BY), ". ",
    ...positionOf(on, ""), ...rootCause(on.root_cause, "units", "units")];
}

function positionOf(on, what) {
  return on.position ? [`Position ${count(on.position)}${what}.`] : [];
}

function holdersOf(ids) {
  return listOf(ids.map((id) => [executionLink(id)]), HELD_BY);
}

/** The cause to fix: what the holders of slots or units, or the executions ahead, wait for. */
function rootCause(cause, one = "a slot", several = "slots") {
  if (!cause) return [];
  const waits = ["The executions ahead are waiting, too. ",
    ` holds ${one} but does not run yet. `][cause.ids.length] ?? ` hold ${several} but do not run yet. `;
  return [" ", ...listOf(cause.ids.map((id) => [executionLink(id)])), waits, ...reasonOf(cause.on)];
}

function startOf({ estimated_start: start }) {
  if (!start) return [];
  if (start.overdue) {
    return [el("p", {}, "What is ahead runs longer than all known runs, so its start is not known.")];
  }
  return [el("p", {}, "Estimated start: ", instant(start.earliest), " at the earliest, ",
    instant(start.latest), " at the latest.")];
}

function documentsOf(it) {
  return [["Parameters", it.parameters], ["Result", it.result], ["Metadata", it.metadata]]
    .filter(([, value]) => value !== null && JSON.stringify(value) !== "{}")
    .map(([name, value]) => section(name,
      el("pre", { tabindex: 0, "aria-label": name }, writeJson(value, 2))));
}
