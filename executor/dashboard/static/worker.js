// The screen of one worker: what it runs, its pools, its last failures, its start, and how far its drain is.

import { button, el, render, say, text } from "./dom.js";
import { between, count, counted, duration } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { acknowledge, drain } from "./changes.js";
import { loader, polled } from "./list.js";
import { actionOf, afterChange, badge, elapsed, errorLine, errorOf, executionLink, head, instant,
  needsAttention, none, occupancy, poolLink, section, stoppingWords, termsOf, trail, workerStates,
} from "./parts.js";
import { table } from "./table.js";

const EVERY_MILLISECONDS = 2000;
const PRESENT = ["live", "draining", "overdue"];

const RUNS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Attempt", "number", (each) => each.attempt],
  ["Running for", "number", (each) => elapsed(each.started_at)],
  ["State", "", (each) => (each.stopping ? el("div", {}, badge("stopping"), " ", stoppingWords(each.stopping))
    : badge("running"))],
];
const HELD = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Attempt", "number", (each) => each.attempt ?? none("–")],
  ["Started", "", (each) => (each.started_at ? instant(each.started_at) : none("not started"))],
  ["Now", "", (each) => badge(each.status)],
];
const POOLS = [
  ["Pool", "row", (each) => poolLink(each.pool)],
  ["Granted, over all workers", "", (each) => occupancy(each.held, each.capacity)],
  ["Waiting for capacity", "", (each) => (each.waiting_queues ? counted(each.waiting_queues, "queue")
    : none("nothing"))],
];
const FAILURES = [
  ["Execution", "row", (each) => executionLink(each.execution_id)],
  ["Action", "", actionOf],
  ["Attempt", "number", (each) => each.attempt],
  ["Outcome", "", (each) => badge(each.outcome)],
  ["Error", "error", (each) => errorOf(each.error)],
  ["Ended", "", (each) => instant(each.ended_at)],
  ["Duration", "number", (each) => duration(between(each.started_at, each.ended_at))],
];
const ACTIONS = [
  ["Action", "row", (each) => (each.pool === null ? [each.action_ref, " ", none("deleted")]
    : actionOf(each))],
  ["Pool", "", (each) => (each.pool === null ? none("–") : poolLink(each.pool))],
  ["Limit", "number", (each) => (each.pool === null ? none("–")
    : each.max_concurrent === null ? none("no limit") : count(each.max_concurrent))],
  ["State", "", (each) => (each.paused ? badge("paused") : none("–"))],
  ["Definition changed", "", (each) => (each.updated_at ? instant(each.updated_at) : none("–"))],
];

export function show(main, { worker: wanted }, { live, signal }) {
  const wrong = errorLine();
  const name = el("span", {}, wanted);
  const state = el("span", { class: "states" });
  const trouble = el("p", { class: "failed-lately", role: "status", hidden: true });
  const progress = drainPart();
  const capacity = el("div");
  const facts = el("dl", { class: "metrics" });
  const buttons = el("div", { class: "buttons" });
  const runs = table("What the worker runs, the longest first", RUNS, { empty: "The worker runs nothing." });
  const held = table("What the worker held when it was gone, by ID", HELD, { empty: "It held nothing." });
  const heldPart = el("section", { hidden: true }, el("h2", {}, "Held when it was gone"), held.node);
  const pools = table("Pools", POOLS, { keyOf: (each) => each.pool });
  const failures = table("Last failed attempts, newest first", FAILURES, {
    empty: "No failed attempts among the newest 10,000 executions.",
    keyOf: (each) => `${each.execution_id} ${each.attempt}`,
  });
  const actions = table("Actions that the worker serves", ACTIONS, {
    empty: "The worker has not registered its actions, so it is taken to serve all actions of its pools.",
    keyOf: (each) => each.action_ref,
  });
  const notes = el("div");
  const changes = el("div", { class: "later" });
  let known = null;

  const loading = loader(async (mine) => {
    // An address with a name keeps showing the worker that it found.
    const it = await ask("GET", `/workers/${encodeURIComponent(known?.id ?? wanted)}`, { signal: mine });
    text(name, it.name);
    document.title = `${it.name} · Turnstile`;
    render(state, workerStates([it]));
    trouble.hidden = !it.not_ready;
    text(trouble, it.not_ready ? `Not ready, so it starts nothing. ${it.not_ready}` : "");
    render(capacity, occupancy(it.running, it.concurrency));
    render(facts, factsOf(it));
    progress.update(it);
    runs.update(it.runs);
    heldPart.hidden = PRESENT.includes(it.state);
    held.update(it.held);
    pools.update(it.pool_capacities);
    failures.update(it.failures);
    actions.update(it.actions ?? []);
    render(notes, notesOf(it.start_notes));
    render(buttons, buttonsFor(it,
      (change, words) => afterChange(change([it]), `${it.name} ${words}`, loading.now)));
    if (known === null) changes.append(auditLogOf({ subject_kind: "worker", subject: it.id }, signal));
    if (known !== null && known.state !== it.state) say(`${it.name} is ${it.state}`);
    known = it;
  }, { every: 1000, signal, wrong });
  polled(loading, EVERY_MILLISECONDS, signal, () => known === null || PRESENT.includes(known.state));
  live.on("opening", loading.soon, signal);
  main.append(
    trail("#/workers", "Workers"), head([name, state], buttons),
    wrong, trouble, progress.node,
    el("div", { class: "panel" }, el("p", { class: "said" }, "Capacity in use"), capacity, facts),
    heldPart, section("Running now", runs.node), section("Pools", pools.node),
    section("Last failures", failures.node),
    section("Actions", actions.node), section("Start", notes), changes);
  loading.now();
}

function factsOf(it) {
  const facts = [
    ["Version", it.version ?? none("unknown")],
    ["Host", `${it.host}, process ${it.pid}`],
    ["Started", instant(it.started_at)],
    ["Last heartbeat", instant(it.renewed_at)],
    it.stopped_at && ["Stopped", instant(it.stopped_at)],
    it.lost_at && ["Lost", instant(it.lost_at)],
    it.acknowledged_at && ["Acknowledged", instant(it.acknowledged_at)],
    ["ID", el("span", { class: "id" }, it.id)],
  ];
  return termsOf(facts);
}

function buttonsFor(it, act) {
  const drains = button("Drain", () => act(drain, "is draining"), {
    class: "danger", needs: "POST /workers/{worker_id}/drain",
    blocked: it.state !== "live" && `The worker is ${it.state}: only a live worker can be drained.`,
  });
  const executions = el("a", { class: "button", href: `#/executions?worker_id=${encodeURIComponent(it.id)}` },
    "Executions");
  if (PRESENT.includes(it.state)) return [drains, executions];
  return [needsAttention(it) && button("Acknowledge", () => act(acknowledge, "is acknowledged"),
    { needs: "POST /workers/{worker_id}/acknowledge" }), executions];
}

/** How many attempts still run, and until when the worker waits for them; absent unless it drains. */
function drainPart() {
  const bar = el("progress", { "aria-label": "Attempts that have ended since the drain" });
  const words = el("p", { role: "status" });
  // Beside the status, because their words change each second.
  const times = el("p", {});
  const node = el("section", { class: "draining", hidden: true, "aria-label": "Drain" }, words, times, bar);
  return {
    node,
    update({ state, running, draining_count: total, draining_until: until, draining_at: since }) {
      node.hidden = state !== "draining";
      if (node.hidden) return;
      const held = Math.max(total ?? 0, running);
      bar.max = Math.max(held, 1);
      bar.value = held ? held - running : 1;
      text(words, held ? `Draining: ${count(running)} of ${counted(held, "attempt")} still running.`
        : "Draining: nothing is running.");
      render(times, "Requested ", instant(since), ".", held && running && until ? [" The deadline is ",
        instant(until), ": what still runs then returns to the head of its queue."] : null);
    },
  };
}

function notesOf(lines) {
  if (lines === null)
    return [el("p", { class: "none" }, "The worker did not report its start.")];
  if (lines.length === 0)
    return [el("p", { class: "none" }, "No warnings or errors before its registration.")];
  return [el("pre", { tabindex: 0, "aria-label": "Warnings and errors of the start" }, lines.join("\n"))];
}
