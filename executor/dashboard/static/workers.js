// The screen of workers, grouped by name: a restarted process has the same name and another id.

import { button, el, render } from "./dom.js";
import { count } from "./format.js";
import { auditLogOf } from "./audit_log.js";
import { acknowledge, drain } from "./changes.js";
import { list } from "./list.js";
import { afterChange, executionLinks, head, instant, needsAttention, none, occupancy, tabs, workerLink,
  workerStates } from "./parts.js";
import { table } from "./table.js";

/** The states of each tab by its name in the address. */
const STATES = { present: ["live", "draining", "overdue"], lost: ["lost"], stopped: ["stopped"], all: [] };
const TABS = [["Present", "present"], ["Lost", "lost"], ["Stopped", "stopped"], ["All", "all"]];

export function show(main, address, context) {
  const given = address.parameters.get("state");
  let chosen = Object.hasOwn(STATES, given ?? "") ? given : "present";
  const states = el("div");
  const describe = () => render(states, tabs("State", TABS, (each) => each === chosen, (value) => {
    chosen = value;
    describe();
    workers.pages.changed();
  }));
  const act = (change, done, words) => afterChange(change(done), `${done[0].name} ${words}`, workers.now);
  const shown = table("Workers by name, newest first", columnsOf(act), { keyOf: ([{ name }]) => name,
    empty: "No workers in this state. Start one with: worker serve --actions MODULE" });
  const workers = list(address, context, {
    path: "workers", table: { ...shown, update: (items) => shown.update(byName(items)) }, size: 100,
    every: 2000, follows: () => true,
    search: () => ({ state: chosen === "present" ? null : chosen }), query: () => ({ state: STATES[chosen] }),
  });
  describe();
  main.append(head("Workers"), states, workers.wrong, ...workers.nodes,
    auditLogOf({ subject_kind: "worker" }, context.signal));
  workers.now();
}

/** The processes of a page by their names. */
function byName(items) {
  const names = new Map();
  for (const each of items) names.set(each.name, [...(names.get(each.name) ?? []), each]);
  return [...names.values()];
}

/** Each row is a list of processes of one name, the newest first. */
function columnsOf(act) {
  return [
    ["Worker", "row", nameOf],
    ["State", "", workerStates],
    ["Running", "", (all) => runningOf(all.filter(({ state }) => STATES.present.includes(state)))],
    ["Held when gone", "", heldOf],
    ["Pools", "", (all) => [...new Set(all.flatMap(({ pools }) => pools))].join(", ")],
    ["Host", "", ([{ host, pid }, ...others]) => (others.length ? host : `${host}, process ${pid}`)],
    ["Started", "", ([newest]) => instant(newest.started_at)],
    ["Last heartbeat", "", ([newest]) => instant(newest.renewed_at)],
    ["Actions", "does", (all) => [
      buttonOf("Drain", all.filter(({ state }) => state === "live"), "drain", "danger",
        (workers) => act(drain, workers, "is draining")),
      buttonOf("Acknowledge", all.filter(needsAttention), "acknowledge", null,
        (workers) => act(acknowledge, workers, "is acknowledged")),
    ]],
  ];
}

function buttonOf(words, workers, verb, kind, change) {
  return workers.length > 0 && button(words, () => change(workers), { class: kind,
    needs: `POST /workers/{worker_id}/${verb}`, "aria-label": `${words} ${workers[0].name}` });
}

/** The name of the newest process, and behind it the others. */
function nameOf([newest, ...others]) {
  return [
    el("a", { href: workerLink(newest.id) }, newest.name), el("span", { class: "id" }, newest.id),
    others.length > 0 && el("details", {}, el("summary", {}, `${count(others.length)} more of this name`),
      others.map((each) => el("div", {}, el("a", { class: "id", href: workerLink(each.id) }, each.id), " ",
        workerStates([each]), instant(each.started_at)))),
  ];
}

function runningOf(workers) {
  return workers.length ? occupancy(sum(workers, "running"), sum(workers, "concurrency")) : none("–");
}

function sum(workers, field) {
  return workers.reduce((total, each) => total + each[field], 0);
}

/** What those held that are gone: the first ids, and how many more. */
function heldOf(workers) {
  const total = sum(workers, "held_count");
  const ids = workers.flatMap((each) => each.held_ids).slice(0, 3);
  if (total === 0) return none("–");
  const more = total > ids.length && ` and ${count(total - ids.length)} more`;
  return el("div", {}, executionLinks(ids, ""), more);
}
