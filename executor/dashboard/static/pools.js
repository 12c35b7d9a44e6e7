// The screens of pools: their workers' capacity, who holds it, and what waits for it.

import { el, render } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./api.js";
import { badge, elapsed, none, occupancy, poolLink, queueLink, section, shortId } from "./parts.js";
import { sparkline } from "./chart.js";
import { changePoolPause } from "./changes.js";
import { HOLDER, showList, showOne, WAITING } from "./gates.js";
import { table } from "./table.js";

const NO_WORKER = "No live worker serves this pool: executions of its actions wait in their queues.";

const POOLS = [
  ["Pool", "row", ({ name }) => poolLink(name)],
  ["Granted", "", ({ held, capacity }) => (held === null ? none("–") : occupancy(held, capacity))],
  ["Waiting", "number", ({ waiting }) => count(waiting)],
  ["Granted, last hour", "", ({ use }) => sparkline(use, "Worker slots granted over the last hour")],
  ["Order", "", ({ order }) => order],
  ["Weights", "number", ({ weights }) => count(Object.keys(weights).length)],
  ["Used by actions", "number", ({ actions }) => count(actions)],
  ["State", "", (pool) => (statesOf(pool).length ? statesOf(pool) : none("open"))],
];
const HOLDERS = [
  ...HOLDER,
  ["Status", "", (each) => badge(each.status)],
  ["Worker", "", (each) => shortId(each.worker_id, "not at a worker yet")],
  ["Granted for", "number", (each) => elapsed(each.granted_at)],
];
const ACTIONS = [
  ["Action", "row", (each) => el("a", { href: queueLink(each) }, each.action_ref)],
  ["Weight", "number", ({ weight }) => count(weight)],
  ["State", "", ({ served }) => (served ? none("served") : badge("no_worker"))],
];
const KIND = {
  path: "pools", title: "Pools", subject: "pool", units: "worker slots granted",
  holders: ["Holders of worker slots", HOLDERS, "No worker slot is in use."],
  waiting: [...WAITING, ["Queued for", "number", (each) => elapsed(each.queued_at)]],
  changes: [["POST /pools/{name}/pause", "Pause", changePoolPause]],
  read: (name, signal) => ask("GET", `/pools/${encodeURIComponent(name)}`, { signal }),
  statesOf,
  factsOf: (pool) => [
    ["Worker slots", count(pool.capacity)], ["Granted", count(pool.held)], ["Waiting", count(pool.waiting)],
    ["Order", pool.order], ["Actions", count(pool.actions)],
  ],
};

/** The list of all pools. */
export function showAll(main, address, context) {
  const empty = "No pools. The first action or worker of a pool creates it.";
  showList(main, address, context, { ...KIND, columns: POOLS, empty });
}

/** One pool: the executions that hold its worker slots, and those that wait for one. */
export function show(main, address, context) {
  const hint = el("p", { class: "said" });
  const actions = table("Actions by name", ACTIONS,
    { empty: "No action is in this pool.", keyOf: (each) => each.action_ref });
  showOne(main, address, context, {
    ...KIND, hint, last: section("Actions", actions.node),
    update(pool) {
      render(hint, lacksWorkers(pool) && NO_WORKER);
      actions.update(pool.action_weights);
    },
  });
}

/** Nothing waits for a slot of a pool without workers: what could, stays in the queues of its actions. */
function lacksWorkers({ capacity, actions }) {
  return capacity === 0 && actions > 0;
}

function statesOf(pool) {
  return [...(pool.paused ? [badge("paused")] : []), ...(lacksWorkers(pool) ? [badge("no_worker")] : [])];
}
