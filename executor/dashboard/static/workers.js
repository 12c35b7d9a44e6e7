// The screen of workers: list and drain.

import { el, say } from "./dom.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { badge, errorLine, instant, listPages, loader, occupancyBar, table, tabs,
  workerLink } from "./parts.js";
import { drain } from "./changes.js";

const PAGE = 100;
/** The states of each tab by its name in the address. */
const STATES = { present: ["live", "draining", "overdue"], lost: ["lost"], stopped: ["stopped"], all: [] };
const TABS = [["Present", "present"], ["Lost", "lost"], ["Stopped", "stopped"], ["All", "all"]];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  let chosen = chosenIn(parameters);
  const pages = listPages({
    parameters, path: "workers", search: () => ({ state: chosen === "present" ? null : chosen }),
    reload: () => loading.now(),
  });
  const states = tabs("State", TABS, (value) => {
    chosen = value;
    states.update((each) => each === chosen);
    pages.changed();
  });
  const act = async (worker) => {
    if (await drain(worker)) {
      say(`${worker.name} is draining`);
      loading.now();
    }
  };
  const shown = table("Workers, newest first", [
    ["Worker", "row", ({ name, id }) => [el("a", { href: workerLink(id) }, name),
      el("span", { class: "id" }, id)]],
    ["State", "", ({ state, not_ready: trouble }) => (trouble
      ? el("span", { title: trouble }, badge(state), " ", badge("not_ready")) : badge(state))],
    ["Running", "", barOf],
    ["Pools", "", ({ pools }) => pools.join(", ")],
    ["Host", "", ({ host, pid }) => `${host}, process ${pid}`],
    ["Started", "", (worker) => instant(worker.started_at)],
    ["Last heartbeat", "", (worker) => instant(worker.renewed_at)],
    ["Actions", "does", (worker) => (worker.state !== "live" ? null
      : el("button", { type: "button", class: "danger", needs: "POST /workers/{worker_id}/drain",
        "aria-label": `Drain ${worker.name}`, on: { click: () => act(worker) } }, "Drain"))],
  ], { empty: "No workers in this state. Start one with: worker serve --actions MODULE" });
  const loading = loader(async (mine) => {
    const query = { state: STATES[chosen], limit: PAGE, cursor: pages.cursor() };
    const page = await ask("GET", "/workers", { query, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 2000, signal, wrong });

  states.update((each) => each === chosen);
  live.on("overview", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Workers")), states.node,
    wrong, shown.node, pages.node, auditLogOf({ subject_kind: "worker" }, signal));
  loading.now();
}

/** The tab of the address; `gone=1`, of earlier versions, shows all. */
function chosenIn(parameters) {
  const given = parameters.get("gone") === "1" ? "all" : parameters.get("state");
  return Object.hasOwn(STATES, given ?? "") ? given : "present";
}

function barOf({ running, concurrency }) {
  const bar = occupancyBar();
  bar.update(running, concurrency);
  return bar.node;
}
