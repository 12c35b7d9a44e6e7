// The screens of resources: their capacities, who holds their units and what waits for them.

import { el, say, setChildren, text } from "./dom.js";
import { count, duration } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { badge, elapsed, errorLine, executionLink, listPages, loader, occupancyBar, table }
  from "./parts.js";
import { changeCapacity, changeResourcePause } from "./changes.js";
import { block } from "./permissions.js";
import { queueLink } from "./queues.js";

const PAGE = 50;

const none = (text) => el("span", { class: "none" }, text);
const RESOURCES = [
  ["Resource", "row", ({ name }) => resourceLink(name)],
  ["Capacity", "number", ({ capacity }) => (capacity === null ? none("no limit") : count(capacity))],
  ["Rank", "number", ({ rank }) => rank ?? none("–")],
  ["Order", "", ({ order }) => order],
  ["Rate", "", ({ rate }) => (rate ? `${count(rate.starts)} per ${duration(rate.per)}` : none("–"))],
  ["Used by actions", "number", ({ users }) => count(users)],
  ["State", "", ({ paused }) => (paused ? badge("paused") : none("open"))],
];
const HOLDERS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Units", "number", (each) => count(each.units)],
  ["Status", "", (each) => (each.status === "queued" ? "waits at a later gate" : badge(each.status))],
  ["Held for", "number", (each) => elapsed(each.passed_at)],
];
const WAITING = [
  ["Position", "", (each) => count(each.position)],
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", actionOf],
  ["Priority", "number", (each) => each.priority],
  ["Units", "number", (each) => count(each.units)],
  ["Waiting for", "number", (each) => elapsed(each.arrived_at)],
];

/** The list of all resources. */
export function showAll(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const pages = listPages({ parameters, path: "resources", reload: () => loading.now() });
  const shown = table("Resources by name", RESOURCES, {
    empty: "No resources. Create one: executor resources put NAME --capacity NUMBER",
    keyOf: (each) => each.name,
  });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/resources",
      { query: { limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Resources")), wrong, shown.node, pages.node);
  loading.now();
}

/** One resource: its units, their holders, and the executions that wait for it. */
export function show(main, { ref: name, parameters }, { live, signal }) {
  const wrong = errorLine();
  const states = el("span", { class: "states" });
  const bar = occupancyBar("units held");
  const facts = el("dl", { class: "metrics" });
  const holders = table("Holders of units", HOLDERS, { empty: "No unit is in use." });
  const waiting = table("Waiting executions, in order", WAITING, { empty: "No waiting executions." });
  const pages = listPages({ parameters, path: `resources/${encodeURIComponent(name)}`,
    reload: () => loading.now() });
  let known = null;
  const act = async (change) => {
    if (await change({ ...known, name })) {
      say("Changed");
      loading.now();
    }
  };
  const pause = el("button", { type: "button", needs: "POST /resources/{name}/pause",
    on: { click: () => act(changeResourcePause) } }, "Pause");
  const capacity =
    el("button", { type: "button", needs: "PATCH /resources/{name}",
      on: { click: () => act(changeCapacity) } }, "Capacity");
  for (const button of [pause, capacity]) block(button, "The state of the resource is loading.");
  const loading = loader(async (mine) => {
    const path = `/resources/${encodeURIComponent(name)}/queue`;
    const page = await ask("GET", path, { query: { limit: PAGE, cursor: pages.cursor() }, signal: mine });
    known = page;
    for (const button of [pause, capacity]) block(button, null);
    text(pause, page.paused ? "Resume" : "Pause");
    setChildren(states, ...(page.paused ? [badge("paused")] : []));
    bar.update(page.held, page.capacity);
    setChildren(facts, ...factsOf([
      ["Waiting", count(page.waiting)], ["Held while waiting", count(page.held_waiting)],
      ["Order", page.order],
    ]));
    holders.update(page.holders);
    waiting.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 1000, signal, wrong });
  live.on("queues", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  main.append(
    el("p", { class: "trail" }, el("a", { href: "#/resources" }, "Resources")),
    el("div", { class: "head" }, el("h1", {}, name, states),
      el("div", { class: "buttons" }, pause, capacity)),
    wrong, el("div", { class: "panel" }, bar.node, facts),
    el("section", {}, el("h2", {}, "Holders"), holders.node),
    el("section", {}, el("h2", {}, "Waiting"), waiting.node, pages.node),
    auditLogOf({ subject_kind: "resource", subject: name }, signal));
  loading.now();
}

/** A link to the resource that a gate is, or the name of the gate. */
export function gateLink(gate) {
  const name = gate.startsWith("resource ") ? gate.slice("resource ".length) : null;
  return name === null ? gate : ["resource ", resourceLink(name)];
}

function resourceLink(name) {
  return el("a", { href: `#/resources/${encodeURIComponent(name)}` }, name);
}

/** The action of an execution, with its key. */
export function actionOf(each) {
  const key = each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key);
  return [el("a", { href: queueLink(each) }, each.action_ref), key];
}

/** Names and values as a list of terms. */
export function factsOf(facts) {
  return facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}
