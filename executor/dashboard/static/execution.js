// The screen of one execution: status, history, why it waits, attempts and logs.

import { button, el, render, say } from "./dom.js";
import { between, count, duration } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { auditLogOf } from "./audit_log.js";
import { cancel, retry } from "./changes.js";
import { loader } from "./list.js";
import { logPart } from "./logs.js";
import { afterChange, badge, elapsed, errorLine, executionLink, executionLinks, gateLink, head, instant,
  none, occupancy, poolLink, queueLink, section, shortId, stoppingWords, termsOf, trail, workerLink,
} from "./parts.js";
import { retryEdited } from "./submit.js";
import { table } from "./table.js";

const ENDS = ["completed", "failed", "timeout", "cancelled", "expired", "abandoned"];
const PATH_STATES = { waiting: "waits here", not_reached: "not reached", elsewhere: "not passed by it" };
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

const PATH = [
  ["Gate", "row", (each) => gateLink(each.gate)],
  ["State", "", (each) => el("div", {}, PATH_STATES[each.state] ?? each.state,
    executionLinks(each.waiting_holders, "; holders that wait here: "),
    each.is_blocker && [" ", badge("blocker")])],
  ["Needs", "number", (each) => count(each.units)],
  ["Held", "", (each) => occupancy(each.held, each.capacity)],
  ["There since", "", (each) => instant(each.since)],
];

const GATES = [
  ["Gate", "row", (each) => gateLink(each.gate)],
  ["Units", "number", (each) => count(each.units)],
  ["Arrived", "", (each) => instant(each.arrived_at)],
  ["Passed", "", (each) => (each.passed_at ? instant(each.passed_at)
    : none(!each.waits ? "with the next gate" : each.ended_at ? "ended here" : "waits here"))],
  ["Waited", "number", (each) => (each.passed_at ?? each.ended_at
    ? duration(between(each.arrived_at, each.passed_at ?? each.ended_at)) : elapsed(each.arrived_at))],
];

/** Since when an execution waits at a gate, or holds it; null: it is not there yet. */
function sinceOf({ gates = [], queued_at: queued }, gate) {
  const step = gates.find((each) => each.gate === gate);
  return step?.passed_at ?? step?.arrived_at ?? (gate === "queue" ? queued : null);
}

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
  const path = table("On the way to its start", PATH, { keyOf: (each) => each.gate });
  const pathPart = el("section", { hidden: true }, el("h2", {}, "On the way to its start"), path.node);
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
    pathPart.hidden = it.path.length === 0;
    path.update(it.path.map((each) => ({ ...each, since: sinceOf(it, each.gate) })));
    // While it waits, its path has them all.
    gatesPart.hidden = !it.gates || !pathPart.hidden;
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
    wrong, why, pathPart, el("div", { class: "panel" }, progress, facts, steps),
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

/** The blocker, who holds it, what helps, and when the execution may start. */
function whyOf(it) {
  const { blocker } = it;
  if (it.stopping) return [el("p", {}, stoppingWords(it.stopping))];
  if (!blocker) return it.error
    ? [el("p", { class: it.status === "cancelled" ? "ended" : "wrong" }, el("strong", {}, it.error.type),
      ` ${it.error.message}`)] : [];
  return [
    el("p", {}, el("strong", {}, "Waits: "), withLinks(blocker.why), ...heldBy(blocker),
      ...(blocker.until ? ["; not before ", instant(blocker.until)] : []), ".", ...positionOf(it)),
    el("p", {}, el("strong", {}, "What helps: "), blocker.help,
      blocker.command && [": ", el("code", {}, blocker.command)]),
    ...startOf(it)];
}

/** A sentence in which the executions are links. */
function withLinks(words) {
  return words.split(/#(\d+)/).map((part, index) => (index % 2 ? executionLink(part) : part));
}

function heldBy({ held_by: named, holders, since: at }) {
  const more = holders - named.length;
  return [executionLinks(named, ", held by "), more ? ` and ${count(more)} more` : null,
    at && [named.length > 1 ? " for up to " : " for ", elapsed(at)]];
}

function positionOf({ position, queue_length: length, waiting_on: on }) {
  if (position) return [` Position ${count(position)}${length ? ` of ${count(length)}` : ""} in the queue.`];
  return on.position ? [` Position ${count(on.position)} there.`] : [];
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
