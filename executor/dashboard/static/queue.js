// The screen of one queue: slot holders, waiting executions in order, statistics and changes.

import { el, say, text } from "./dom.js";
import { clock, count, rate } from "./format.js";
import { ask, Problem } from "./api.js";
import { badge, cell, instant, loader, occupancyBar, pager, plainRow, shortId, sparkline, table, errorLine } from "./parts.js";
import { actionPath, changeLimit, changePause } from "./changes.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
const WHY = [
  ["limit", "for a slot"], ["paused", "because the action is paused"], ["no_worker", "for a worker"], ["rate", "to be dispatched"],
];

export function show(main, { ref, parameters }, { live, signal }) {
  const key = parameters.get("key");
  const wrong = errorLine();
  const screen = { queue: null, cursor: null };
  const head = headOf(ref, key, screen, () => loading.now());
  const holders = table("Slot holders", [["Execution", ""], ["Status", ""], ["Attempt", "number"], ["Worker", ""], ["Held for", "number"]],
    { empty: "No slot is in use." });
  const waiting = table("Waiting executions, in order", [["Position", ""], ["Execution", ""], ["Key", ""], ["Waiting for", "number"]],
    { empty: "Queue is empty." });
  const keys = table("Longest queues by key", [["Key", ""], ["Waiting", "number"], ["Slots in use", "number"]]);
  const keysPart = el("section", { class: "tall", hidden: true }, el("h2", {}, "Longest queues by key"), keys.node);
  const changes = changesOf(ref, signal);
  const pages = pager((cursor) => {
    screen.cursor = cursor;
    loading.now();
  });
  const loading = loader(async (mine) => {
    const query = { action_ref: ref, concurrency_key: key, limit: 1 };
    const [stats, found, seen] = await Promise.all([
      ask("GET", `${actionPath(ref)}/queue-stats`, { signal: mine }),
      ask("GET", `${actionPath(ref)}/queue`, { query: { concurrency_key: key, limit: PAGE, cursor: screen.cursor }, signal: mine }),
      ask("GET", "/queues", { query, signal: mine }),
    ]);
    screen.queue = { action_ref: ref, max_concurrent: stats.max_concurrent, paused: stats.paused, active_count: stats.active_count };
    head.update(stats, seen.items[0], key);
    holders.update(found.holders, (each) => each.id, plainRow(holderCells));
    waiting.update(found.items, (each) => each.id, plainRow(waitingCells));
    pages.update(found.next_cursor, null);
    const split = key === null ? stats.by_key : [];
    keysPart.hidden = split.length === 0;
    keys.update(split, (each) => each.concurrency_key, plainRow((each) => keyCells(ref, each)));
  }, { every: 2000, signal, wrong });

  live.on("queues", ({ items, more }) => {
    if (more || items.some((each) => each.action_ref === ref)) loading.soon();
  }, signal);
  live.on("opening", loading.soon, signal);
  main.append(head.node, wrong,
    el("section", { class: "tall" }, el("h2", {}, "Slot holders"), holders.node),
    el("section", {}, el("h2", {}, "Waiting"), waiting.node, pages.node),
    keysPart, changes);
  loading.now();
}

function headOf(ref, key, screen, changed) {
  const bar = occupancyBar();
  const spark = sparkline({ width: 600, height: 60 });
  const states = el("span", { class: "states" });
  const metrics = ["Waiting", "Oldest waiting", "Admitted", "Completed", "Total admitted", "Total completed"]
    .map((name) => [el("dt", {}, name), el("dd", {}, "–")]);
  const why = el("p", { class: "why" });
  const act = async (change, message) => {
    if (await change(screen.queue)) {
      say(message);
      changed();
    }
  };
  // Disabled until the current state is loaded.
  const pause = el("button", { type: "button", disabled: true, on: { click: () => act(changePause, "Changed") } }, "Pause");
  const limit = el("button", { type: "button", disabled: true, on: { click: () => act(changeLimit, "Limit changed") } }, "Limit");
  const node = el("div", {},
    el("p", { class: "trail" }, el("a", { href: "#/queues" }, "Queues")),
    el("div", { class: "head" },
      el("h1", {}, ref, key === null ? null : el("span", { class: "key" }, key), states),
      el("div", { class: "buttons" }, pause, limit,
        el("a", { class: "button", href: `#/executions?action_ref=${encodeURIComponent(ref)}` }, "Executions"))),
    el("div", { class: "panel" }, bar.node, spark.node, why,
      el("dl", { class: "metrics" }, metrics.map((pair) => el("div", {}, pair)))));
  return {
    node,
    update(stats, seen, ofKey) {
      // With a key: the metrics of its queue. Without one: the sums over all keys of the action.
      const one = ofKey === null ? null : seen;
      const waiting = one?.queue_length ?? stats.queue_length;
      const held = one?.active_count ?? stats.active_count;
      const single = ofKey !== null || stats.by_key.length === 0;
      bar.update(held, single ? stats.max_concurrent : null, single ? null : "in use over all keys");
      const shown = [
        count(waiting), instant((one ?? stats).oldest_enqueued_at, { ago: true }),
        single ? `${rate(seen?.enqueued_per_second)} /s` : "–", single ? `${rate(seen?.completed_per_second)} /s` : "–",
        count(one?.total_enqueued ?? stats.total_enqueued), count(one?.total_completed ?? stats.total_completed),
      ];
      shown.forEach((value, index) => metrics[index][1].replaceChildren(value));
      text(why, ofKey === null ? whyOf(stats) : "");
      spark.node.toggleAttribute("hidden", !single || !seen);
      if (seen) spark.update(seen.depths);
      states.replaceChildren(...(stats.paused ? [badge("paused")] : []), ...(seen && !seen.served ? [badge("no_worker")] : []));
      text(pause, stats.paused ? "Resume" : "Pause");
      pause.disabled = limit.disabled = false;
    },
  };
}

function whyOf({ queue_length: length, waiting }) {
  if (length === 0) return "Queue is empty.";
  const parts = WHY.filter(([reason]) => waiting[reason] > 0).map(([reason, words]) => `${count(waiting[reason])} ${words}`);
  return `${count(length)} waiting: ${parts.join(", ")}.`;
}

export function executionLink(id) {
  return el("a", { href: `#/executions/${id}` }, `#${id}`);
}

function holderCells(each) {
  return [
    el("th", { scope: "row" }, executionLink(each.id), each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key)),
    cell("Status", {}, badge(each.status)),
    cell("Attempt", { class: "number" }, each.attempt),
    cell("Worker", {}, each.worker_id ? shortId(each.worker_id) : el("span", { class: "none" }, "not claimed yet")),
    cell("Held for", { class: "number" }, instant(each.granted_at, { ago: true })),
  ];
}

function waitingCells(each) {
  return [
    cell("Position", {}, count(each.position)),
    el("th", { scope: "row" }, executionLink(each.id)),
    cell("Key", {}, each.concurrency_key ?? el("span", { class: "none" }, "–")),
    cell("Waiting for", { class: "number" }, instant(each.queued_at, { ago: true })),
  ];
}

function keyCells(ref, each) {
  return [
    el("th", { scope: "row" }, el("a", { href: queueLink({ action_ref: ref, concurrency_key: each.concurrency_key }) }, each.concurrency_key)),
    cell("Waiting", { class: "number" }, count(each.queue_length)),
    cell("Slots in use", { class: "number" }, count(each.active_count)),
  ];
}

/** The changes of the action; loaded when the section is opened. */
function changesOf(ref, signal) {
  const shown = table("Changes, newest first", [["Changed", ""], ["By", ""], ["Change", ""], ["Before", ""], ["After", ""]],
    { empty: "No changes recorded." });
  const wrong = errorLine();
  const node = el("details", {}, el("summary", {}, "Changes"), wrong, shown.node);
  node.addEventListener("toggle", async () => {
    if (!node.open) return;
    try {
      const page = await ask("GET", `${actionPath(ref)}/changes`, { query: { limit: 100 }, signal });
      shown.update(page.items, (each) => each.id, plainRow(changeCells));
    } catch (error) {
      if (error instanceof Problem) text(wrong, error.message);
      else if (!signal.aborted) throw error;
    }
  });
  return node;
}

function changeCells({ changed_at: at, changed_by: by, change, old, new: now }) {
  return [
    el("th", { scope: "row" }, clock(at)),
    cell("By", {}, by ?? el("span", { class: "none" }, "unknown")),
    cell("Change", {}, change),
    cell("Before", {}, fieldsOf(old)),
    cell("After", {}, fieldsOf(now)),
  ];
}

function fieldsOf(fields) {
  return Object.entries(fields ?? {}).map(([name, value]) => el("code", { class: "pair" }, `${name}: ${JSON.stringify(value)}`));
}
