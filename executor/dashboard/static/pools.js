// The screens of pools: their workers' capacity, who holds it, and what waits for it.

import { el, say, setChildren, text } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { badge, elapsed, errorLine, executionLink, listPages, loader, occupancyBar, shortId, table }
  from "./parts.js";
import { changePoolPause } from "./changes.js";
import { block } from "./permissions.js";
import { queueLink } from "./queues.js";
import { actionOf, factsOf } from "./resources.js";

const PAGE = 50;
const NO_WORKER = "No live worker serves this pool: executions of its actions wait in their queues.";

const none = (text) => el("span", { class: "none" }, text);
const POOLS = [
  ["Pool", "row", ({ name }) => poolLink(name)],
  ["Worker slots", "number", ({ capacity }) => count(capacity)],
  ["Granted", "number", ({ held }) => count(held)],
  ["Waiting", "number", ({ waiting }) => count(waiting)],
  ["Order", "", ({ order }) => order],
  ["Weights", "number", ({ weights }) => count(Object.keys(weights).length)],
  ["Used by actions", "number", ({ actions }) => count(actions)],
  ["State", "", (pool) => (statesOf(pool).length ? statesOf(pool) : none("open"))],
];
const HOLDERS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Status", "", (each) => badge(each.status)],
  ["Worker", "", (each) => (each.worker_id ? shortId(each.worker_id) : none("not claimed yet"))],
  ["Granted for", "number", (each) => elapsed(each.granted_at)],
];
const WAITING = [
  ["Position", "", (each) => count(each.position)],
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Priority", "number", (each) => each.priority],
  ["Queued for", "number", (each) => elapsed(each.queued_at)],
];

const ACTIONS = [
  ["Action", "row", (each) => el("a", { href: queueLink(each) }, each.action_ref)],
  ["Weight", "number", ({ weight }) => count(weight)],
  ["State", "", ({ served }) => (served ? none("served") : badge("no_worker"))],
];

/** The list of all pools. */
export function showAll(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const pages = listPages({ parameters, path: "pools", reload: () => loading.now() });
  const empty = "No pools. The first action or worker of a pool creates it.";
  const shown = table("Pools by name", POOLS, { empty, keyOf: (each) => each.name });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/pools", { query: { limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Pools")), wrong, shown.node, pages.node);
  loading.now();
}

/** One pool: the executions that hold its worker slots, and those that wait for one. */
export function show(main, { ref: name, parameters }, { live, signal }) {
  const wrong = errorLine();
  const states = el("span", { class: "states" });
  const alone = el("p", { class: "said" });
  const bar = occupancyBar("worker slots granted");
  const facts = el("dl", { class: "metrics" });
  const holders = table("Holders of worker slots", HOLDERS, { empty: "No worker slot is in use." });
  const waiting = table("Waiting executions, in order", WAITING, { empty: "No waiting executions." });
  const actions = table("Actions by name", ACTIONS,
    { empty: "No action is in this pool.", keyOf: (each) => each.action_ref });
  const path = `pools/${encodeURIComponent(name)}`;
  const pages = listPages({ parameters, path, reload: () => loading.now() });
  let known = null;
  const act = async () => {
    if (await changePoolPause({ ...known, name })) {
      say("Changed");
      loading.now();
    }
  };
  const needs = "POST /pools/{name}/pause";
  const pause = el("button", { type: "button", needs, on: { click: act } }, "Pause");
  block(pause, "The state of the pool is loading.");
  const loading = loader(async (mine) => {
    const query = { limit: PAGE, cursor: pages.cursor() };
    const [page, pool] = await Promise.all([
      ask("GET", `/${path}/queue`, { query, signal: mine }), ask("GET", `/${path}`, { signal: mine }),
    ]);
    known = page;
    block(pause, null);
    text(pause, page.paused ? "Resume" : "Pause");
    setChildren(states, ...statesOf({ ...page, actions: pool.actions }));
    setChildren(alone, ...(lacksWorkers({ ...page, actions: pool.actions }) ? [NO_WORKER] : []));
    bar.update(page.held, page.capacity);
    setChildren(facts, ...factsOf([
      ["Worker slots", count(page.capacity)], ["Granted", count(page.held)], ["Waiting", count(page.waiting)],
      ["Order", page.order], ["Actions", count(pool.actions)],
    ]));
    actions.update(pool.action_weights);
    holders.update(page.holders);
    waiting.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 1000, signal, wrong });
  live.on("queues", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  main.append(
    el("p", { class: "trail" }, el("a", { href: "#/pools" }, "Pools")),
    el("div", { class: "head" }, el("h1", {}, name, states), el("div", { class: "buttons" }, pause)),
    wrong, el("div", { class: "panel" }, bar.node, facts),
    el("section", {}, el("h2", {}, "Holders"), holders.node),
    el("section", {}, el("h2", {}, "Waiting"), alone, waiting.node, pages.node),
    el("section", {}, el("h2", {}, "Actions"), actions.node),
    auditLogOf({ subject_kind: "pool", subject: name }, signal));
  loading.now();
}

/** Nothing waits for a slot of a pool without workers: what could, stays in the queues of its actions. */
function lacksWorkers({ capacity, actions }) {
  return capacity === 0 && actions > 0;
}

function statesOf(pool) {
  return [...(pool.paused ? [badge("paused")] : []), ...(lacksWorkers(pool) ? [badge("no_worker")] : [])];
}

export function poolLink(name) {
  return el("a", { href: `#/pools/${encodeURIComponent(name)}` }, name);
}
