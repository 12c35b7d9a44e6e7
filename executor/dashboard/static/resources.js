// The screens of resources: their capacities, who holds their units and what waits for them.

import { count, duration } from "./format.js";
import { badge, elapsed, none, occupancy, resourceLink } from "./parts.js";
import { sparkline } from "./chart.js";
import { changeCapacity, changeResourcePause } from "./changes.js";
import { HOLDER, showList, showOne, WAITING } from "./gates.js";

const RESOURCES = [
  ["Resource", "row", ({ name }) => resourceLink(name)],
  ["Held", "", ({ held, capacity }) => (held === null ? none("–") : occupancy(held, capacity))],
  ["Waiting", "number", ({ waiting }) => count(waiting)],
  ["Held, last hour", "", ({ use }) => sparkline(use, "Units held over the last hour")],
  ["Rank", "number", ({ rank }) => rank ?? none("–")],
  ["Order", "", ({ order }) => order],
  ["Rate", "", ({ rate }) => (rate ? `${count(rate.starts)} per ${duration(rate.per)}` : none("–"))],
  ["Used by actions", "number", ({ users }) => count(users)],
  ["State", "", ({ paused }) => (paused ? badge("paused") : none("open"))],
];
const UNITS = ["Units", "number", (each) => count(each.units)];
const HOLDERS = [
  ...HOLDER, UNITS,
  ["Status", "", (each) => (each.status === "queued" ? "waits at a later gate" : badge(each.status))],
  ["Held for", "number", (each) => elapsed(each.passed_at)],
];
const KIND = {
  path: "resources", title: "Resources", subject: "resource", units: "units held",
  holders: ["Holders of units", HOLDERS, "No unit is in use."],
  waiting: [...WAITING, UNITS, ["Waiting for", "number", (each) => elapsed(each.arrived_at)]],
  changes: [
    ["POST /resources/{name}/pause", "Pause", changeResourcePause],
    ["PATCH /resources/{name}", "Capacity", changeCapacity],
  ],
  statesOf: ({ paused }) => (paused ? [badge("paused")] : []),
  factsOf: (resource) => [
    ["Waiting", count(resource.waiting)], ["Held while waiting", count(resource.held_waiting)],
    ["Order", resource.order],
  ],
};

/** The list of all resources. */
export function showAll(main, address, context) {
  const empty = "No resources. Create one: executor resources put NAME --capacity NUMBER";
  showList(main, address, context, { ...KIND, columns: RESOURCES, empty });
}

/** One resource: its units, their holders, and the executions that wait for it. */
export function show(main, address, context) {
  showOne(main, address, context, KIND);
}
