// The screen of workers: list and drain.

import { el, say } from "./dom.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { badge, instant, loader, occupancyBar, pager, table, errorLine, workerLink } from "./parts.js";
import { drain } from "./changes.js";

const PAGE = 100;
const PRESENT = ["live", "draining", "overdue"];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const gone = el("input", { type: "checkbox", id: "gone", checked: parameters.get("gone") === "1" });
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const act = async (worker) => {
    if (await drain(worker)) {
      say(`${worker.name} is draining`);
      loading.now();
    }
  };
  const shown = table("Workers, newest first", [
    ["Worker", "row", ({ name, id }) => [el("a", { href: workerLink(id) }, name), el("span", { class: "id" }, id)]],
    ["State", "", ({ state }) => badge(state)],
    ["Running", "", barOf],
    ["Pools", "", ({ pools }) => pools.join(", ")],
    ["Host", "", ({ host, pid }) => `${host}, process ${pid}`],
    ["Started", "", (worker) => instant(worker.started_at)],
    ["Last heartbeat", "", (worker) => instant(worker.renewed_at)],
    ["Actions", "does", (worker) => (worker.state !== "live" ? null
      : el("button", { type: "button", needs: "POST /workers/{worker_id}/drain", "aria-label": `Drain ${worker.name}`, on: { click: () => act(worker) } }, "Drain"))],
  ], { empty: "No workers. Start one with: worker serve --actions MODULE" });
  const loading = loader(async (mine) => {
    const query = { state: gone.checked ? [] : PRESENT, limit: PAGE, cursor };
    const page = await ask("GET", "/workers", { query, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor, null);
  }, { every: 2000, signal, wrong });

  gone.addEventListener("change", () => {
    cursor = null;
    pages.reset();
    loading.now();
  });
  live.on("overview", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Workers"),
      el("label", { class: "choice" }, gone, "Show stopped and lost workers")),
    wrong, shown.node, pages.node, auditLogOf({ subject_kind: "worker" }, signal));
  loading.now();
}

function barOf({ running, concurrency }) {
  const bar = occupancyBar();
  bar.update(running, concurrency);
  return bar.node;
}
