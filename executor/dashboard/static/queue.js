// The screen of an action, or of the queue of one of its keys: slot holders, waiting executions in order,
// statistics and changes.

import { button, el, render } from "./dom.js";
import { count, perSecond } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { actionParts } from "./action.js";
import { afterChange, badge, elapsed, errorLine, executionLink, head, keyOf, none, occupancyOfAll,
  queueLink, section, shortId, slotsInUse, slotsOf, statusOf, termsOf, trail,
  waitOf } from "./parts.js";
import { actionPath, changeLimitOf, changePause, limitRoute } from "./changes.js";
import { depthChart } from "./chart.js";
import { editAction } from "./edit_action.js";
import { keySettings } from "./keys.js";
import { listPages, loader } from "./list.js";
import { submitExecution } from "./submit.js";
import { table } from "./table.js";

const PAGE = 50;
const LOADING = "The state of the action is loading.";

const HOLDERS = [
  ["Execution", "row", (each) => [executionLink(each.id), keyOf(each.concurrency_key)]],
  ["Status", "", statusOf],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => shortId(each.worker_id, "not at a worker yet")],
  ["Held for", "number", (each) => elapsed(each.granted_at)],
];
const WAITING = [
  ["Position", "", (each) => count(each.position)],
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Key", "", (each) => each.concurrency_key ?? none("–")],
  ["Priority", "number", (each) => each.priority],
  ["Waiting for", "number", (each) => elapsed(each.queued_at)],
];

export function show(main, { ref, parameters }, { live, signal }) {
  const key = parameters.get("key");
  const wrong = errorLine();
  const states = el("span", { class: "states" });
  const buttons = el("div", { class: "buttons" });
  const bar = el("div");
  const chart = depthChart();
  const why = el("p", { class: "why" });
  const metrics = el("dl", { class: "metrics" });
  const holders = table("Slot holders", HOLDERS, { empty: "No slot is in use." });
  const waiting = table("Waiting executions, in order", WAITING, { empty: "Queue is empty." });
  const keys = table("Longest queues by key", [
    ["Key", "row", (each) => el("a", { href: queueLink({ ...each, action_ref: ref }) },
      each.concurrency_key)],
    ["Waiting", "number", (each) => count(each.queue_length)],
    ["Slots in use", "", (each) => slotsOf(each)],
  ], { keyOf: (each) => each.concurrency_key });
  const keysPart = el("section", { class: "tall", hidden: true }, el("h2", {}, "Longest queues by key"),
    keys.node);
  const action = key === null ? actionParts(ref, signal) : null;
  const settings = keySettings(ref, key, signal);
  const pages = listPages({ parameters, path: `queues/${encodeURIComponent(ref)}`, search: () => ({ key }),
    reload: () => loading.now() });
  const loading = loader(async (mine) => {
    const [stats, found, { items: [seen] }] = await Promise.all([
      ask("GET", `${actionPath(ref)}/queue-stats`, { signal: mine }),
      ask("GET", `${actionPath(ref)}/queue`,
        { query: { concurrency_key: key, limit: PAGE, cursor: pages.cursor() }, signal: mine }),
      ask("GET", "/queues", { query: { action_ref: ref, concurrency_key: key,
        group: key === null ? "action" : null, limit: 1 }, signal: mine }),
    ]);
    const isOne = key !== null || stats.by_key.length === 0;
    const one = key === null ? null : seen ?? idleOf(stats);
    render(states, stats.paused && badge("paused"), seen && !seen.served && badge("no_worker"));
    render(buttons, buttonsOf(ref, key, { ...(one ?? stats), paused: stats.paused }, loading.now));
    render(bar, isOne ? slotsOf(one ?? stats, "slots in use")
      : occupancyOfAll(slotsInUse(stats), "slots in use over all keys"));
    chart.update(seen?.depths);
    const queue = key === null ? stats : seen;
    render(why, queue ? reasonsOf(queue) : "Queue is empty.");
    render(metrics, termsOf(metricsOf(stats, one, seen)));
    action?.update(stats);
    holders.update(found.holders);
    waiting.update(found.items);
    pages.update(found.next_cursor);
    const split = key === null ? stats.by_key : [];
    keysPart.hidden = split.length === 0;
    keys.update(split);
  }, { every: 2000, signal, wrong });

  live.on("queues", ({ items, more }) => {
    if (more || items.some((each) => each.action_ref === ref)) loading.soon();
  }, signal);
  for (const load of [loading.soon, settings.load, action?.load].filter(Boolean)) {
    live.on("opening", load, signal);
    if (load !== settings.load) live.on("overview", load, signal);
  }
  render(buttons, buttonsOf(ref, key, null));
  main.append(trail("#/queues", "Queues"), head([ref, keyOf(key), states], buttons),
    el("div", { class: "panel" }, bar, chart.node, why, metrics), wrong, ...(action?.first ?? []),
    el("section", { class: "tall" }, el("h2", {}, "Slot holders"), holders.node),
    section("Waiting", waiting.node, pages.node),
    keysPart, settings.node, ...(action?.last ?? []), auditLogOf({ action_ref: ref }, signal));
  loading.now();
  settings.load();
  action?.load();
}

/** The buttons of an action, or of one key of it; its `state` is null while it is loading. */
function buttonsOf(ref, key, state, changed) {
  const blocked = state === null && LOADING;
  const name = { action_ref: ref, concurrency_key: key };
  const act = (change, message) => afterChange(change({ ...state, ...name }), message, changed);
  return [
    button("Submit", () => submitExecution(ref), { class: "primary", needs: "POST /executions" }),
    button(state?.paused ? "Resume" : "Pause", () => act(changePause, "Changed"),
      { needs: "POST /actions/{ref}/pause", blocked }),
    key === null && button("Edit", () => act(editAction, "Changed"), { needs: "PATCH /actions/{ref}" }),
    button("Limit", () => act(changeLimitOf, "Limit changed"), { needs: limitRoute(name), blocked }),
    el("a", { class: "button", href: `#/executions?action_ref=${encodeURIComponent(ref)}` }, "Executions"),
  ];
}

/** The queue of a key in which nothing waits or runs. */
function idleOf({ max_concurrent: limit }) {
  return { max_concurrent: limit, active_count: 0, held_waiting: 0, queue_length: 0,
    oldest_enqueued_at: null };
}

/**
 * What is counted: of the queue of one key (`one`), or else over all keys of the action, with its totals;
 * `rated` has the rates.
 */
function metricsOf(stats, one, rated) {
  const ofAll = one === null ? stats : {};
  return [
    ["Waiting", count((one ?? stats).queue_length)],
    ["Oldest waiting", elapsed((one ?? stats).oldest_enqueued_at)],
    ["Admitted", perSecond(rated?.enqueued_per_second)],
    ["Completed", perSecond(rated?.completed_per_second)],
    ["Total admitted", count(ofAll.total_enqueued)],
    ["Total completed", count(ofAll.total_completed)],
  ];
}

/** What waits in a queue, and for what. */
function reasonsOf({ queue_length: length, why }) {
  if (length === 0) return "Queue is empty.";
  return why.map((each, index) => [index > 0 && "; ", waitOf(each)]);
}
