// The screen of one queue: slot holders, waiting executions in order, statistics and changes.

import { el, setChildren, text } from "./dom.js";
import { count, percent, perSecond, rate } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { afterChange, badge, elapsed, errorLine, executionLink, failedLink, instant, listPages, loader, none,
  occupancyBar, shortId, statusOf, table } from "./parts.js";
import { actionPath, changeLimit, changePause } from "./changes.js";
import { depthChart } from "./chart.js";
import { keySettings } from "./keys.js";
import { block } from "./permissions.js";
import { submitExecution } from "./submit.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
const WHY = [
  ["limit", "for a slot"], ["total", "for the total of the action"], ["resource", "for a resource"],
  ["rate", "for a start that a rate allows"], ["pool", "for a worker slot"],
  ["paused", "because the action is paused"],
  ["no_worker", "for a worker"],
];

const HOLDERS = [
  ["Execution", "row", (each) => [executionLink(each.id),
    each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key)]],
  ["Status", "", statusOf],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => (each.worker_id ? shortId(each.worker_id) : none("not at a worker yet"))],
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
  const screen = { queue: null };
  const head = headOf(ref, key, screen, () => loading.now());
  const holders = table("Slot holders", HOLDERS, { empty: "No slot is in use." });
  const failures = failuresPart(ref);
  const waiting = table("Waiting executions, in order", WAITING, { empty: "Queue is empty." });
  const keys = table("Longest queues by key", [
    ["Key", "row", (each) =>
      el("a", { href: queueLink({ action_ref: ref, concurrency_key: each.concurrency_key }) },
        each.concurrency_key)],
    ["Waiting", "number", (each) => count(each.queue_length)],
    ["Slots in use", "number", (each) => count(each.active_count)],
  ], { keyOf: (each) => each.concurrency_key });
  const keysPart = el("section", { class: "tall", hidden: true }, el("h2", {}, "Longest queues by key"),
    keys.node);
  const settings = keySettings(ref, key, signal);
  const changes = auditLogOf({ action_ref: ref }, signal);
  const pages = listPages({ parameters, path: `queues/${encodeURIComponent(ref)}`, search: () => ({ key }),
    reload: () => loading.now() });
  const loading = loader(async (mine) => {
    const query = { action_ref: ref, concurrency_key: key, limit: 1 };
    const [stats, found, seen] = await Promise.all([
      ask("GET", `${actionPath(ref)}/queue-stats`, { signal: mine }),
      ask("GET", `${actionPath(ref)}/queue`,
        { query: { concurrency_key: key, limit: PAGE, cursor: pages.cursor() }, signal: mine }),
      ask("GET", "/queues", { query, signal: mine }),
    ]);
    screen.queue = { action_ref: ref, max_concurrent: stats.max_concurrent, paused: stats.paused,
      active_count: stats.active_count };
    head.update(stats, seen.items[0], key);
    failures.update(seen.items[0]);
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
  for (const load of [loading.soon, settings.load]) live.on("opening", load, signal);
  live.on("overview", loading.soon, signal);
  main.append(head.node, wrong, failures.node,
    el("section", { class: "tall" }, el("h2", {}, "Slot holders"), holders.node),
    el("section", {}, el("h2", {}, "Waiting"), waiting.node, pages.node),
    keysPart, settings.node, changes);
  loading.now();
  settings.load();
}

/** What failed lately, with the latest error; absent while nothing did. */
function failuresPart(ref) {
  const node = el("section", { class: "failed-lately", hidden: true, "aria-label": "Failures" });
  let known = null;
  return {
    node,
    update(seen) {
      const failures = seen?.failures;
      node.hidden = !failures?.failed;
      if (node.hidden || JSON.stringify(failures) === known) return;
      known = JSON.stringify(failures);
      const { last } = failures;
      const share = `${count(failures.failed)} of ${count(failures.ended)} executions failed `
        + `(${percent(failures.share)})`;
      setChildren(node, el("p", {}, el("strong", {}, share),
          " since ", instant(failures.since), `, ${rate(failures.per_minute)} per minute. `,
          el("a", { href: failedLink(ref) }, "Show them")),
        el("p", { class: "error-text" }, "Last failure: ", executionLink(last.execution_id),
          ` ${last.status} `, instant(last.at),
          ": ", [last.type, last.message].filter(Boolean).join(": ") || "no error text"));
    },
  };
}

function headOf(ref, key, screen, changed) {
  const bar = occupancyBar("slots in use");
  const chart = depthChart();
  const states = el("span", { class: "states" });
  const metrics = ["Waiting", "Oldest waiting", "Admitted", "Completed", "Total admitted", "Total completed"]
    .map((name) => [el("dt", {}, name), el("dd", {}, "–")]);
  const why = el("p", { class: "why" });
  const act = (change, message) => afterChange(change(screen.queue), message, changed);
  const pause = el("button", { type: "button", needs: "POST /actions/{ref}/pause",
    on: { click: () => act(changePause, "Changed") } }, "Pause");
  const limit = el("button", { type: "button", needs: "PATCH /actions/{ref}",
    on: { click: () => act(changeLimit, "Limit changed") } }, "Limit");
  for (const button of [pause, limit]) block(button, "The state of the action is loading.");
  const submit = el("button", {
    type: "button", class: "primary", needs: "POST /executions",
    on: { click: () => submitExecution(ref) },
  }, "Submit");
  const node = el("div", {},
    el("p", { class: "trail" }, el("a", { href: "#/queues" }, "Queues")),
    el("div", { class: "head" },
      el("h1", {}, ref, key === null ? null : el("span", { class: "key" }, key), states),
      el("div", { class: "buttons" }, submit, pause, limit,
        el("a", { class: "button", href: `#/executions?action_ref=${encodeURIComponent(ref)}` },
          "Executions"))),
    el("div", { class: "panel" }, bar.node, chart.node, why,
      el("dl", { class: "metrics" }, metrics.map((pair) => el("div", {}, pair)))));
  return {
    node,
    update(stats, seen, ofKey) {
      // With a key: the metrics of its queue. Without one: the sums over all keys of the action.
      const one = ofKey === null ? null : seen;
      const waiting = one?.queue_length ?? stats.queue_length;
      const held = one?.active_count ?? stats.active_count;
      const single = ofKey !== null || stats.by_key.length === 0;
      bar.update(held, single ? stats.max_concurrent : null, single ? null : "slots in use over all keys");
      const shown = [
        count(waiting), elapsed((one ?? stats).oldest_enqueued_at),
        perSecond(single ? seen?.enqueued_per_second : null),
        perSecond(single ? seen?.completed_per_second : null),
        // Totals are counted for an action, over all its keys.
        count(ofKey === null ? stats.total_enqueued : null),
        count(ofKey === null ? stats.total_completed : null),
      ];
      shown.forEach((value, index) => setChildren(metrics[index][1], value));
      text(why, ofKey === null ? whyOf(stats) : "");
      // Without a counted value, as just after the first viewer came, axes alone would look like an empty
      // queue.
      chart.node.toggleAttribute("hidden", !single || !seen?.depths.some((depth) => depth !== null));
      if (seen) chart.update(seen.depths);
      setChildren(states, ...(stats.paused ? [badge("paused")] : []),
        ...(seen && !seen.served ? [badge("no_worker")] : []));
      text(pause, stats.paused ? "Resume" : "Pause");
      for (const button of [pause, limit]) block(button, null);
    },
  };
}

function whyOf({ queue_length: length, waiting }) {
  if (length === 0) return "Queue is empty.";
  const parts = WHY.filter(([reason]) => waiting[reason] > 0)
    .map(([reason, words]) => `${count(waiting[reason])} ${words}`);
  return `${count(length)} waiting: ${parts.join(", ")}.`;
}
