// The screen of workers: list and drain.

import { button, el, render } from "./dom.js";
import { auditLogOf } from "./audit_log.js";
import { drain } from "./changes.js";
import { list } from "./list.js";
import { afterChange, badge, head, instant, occupancy, tabs, workerLink } from "./parts.js";
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
  const act = (worker) => afterChange(drain(worker), `${worker.name} is draining`, workers.now);
  const shown = table("Workers, newest first", columnsOf(act),
    { empty: "No workers in this state. Start one with: worker serve --actions MODULE" });
  const workers = list(address, context, {
    path: "workers", table: shown, size: 100, every: 2000, follows: () => true,
    search: () => ({ state: chosen === "present" ? null : chosen }), query: () => ({ state: STATES[chosen] }),
  });
  describe();
  main.append(head("Workers"), states, workers.wrong, ...workers.nodes,
    auditLogOf({ subject_kind: "worker" }, context.signal));
  workers.now();
}

function columnsOf(act) {
  return [
    ["Worker", "row", ({ name, id }) => [el("a", { href: workerLink(id) }, name),
      el("span", { class: "id" }, id)]],
    ["State", "", ({ state, not_ready: trouble }) => (trouble
      ? el("span", { title: trouble }, badge(state), " ", badge("not_ready")) : badge(state))],
    ["Running", "", ({ running, concurrency }) => occupancy(running, concurrency)],
    ["Pools", "", ({ pools }) => pools.join(", ")],
    ["Host", "", ({ host, pid }) => `${host}, process ${pid}`],
    ["Started", "", (worker) => instant(worker.started_at)],
    ["Last heartbeat", "", (worker) => instant(worker.renewed_at)],
    ["Actions", "does", (worker) => worker.state === "live" && button("Drain", () => act(worker), {
      class: "danger", needs: "POST /workers/{worker_id}/drain", "aria-label": `Drain ${worker.name}`,
    })],
  ];
}
