// The screen of workers: list and drain.

import { el, say } from "./dom.js";
import { ask } from "./api.js";
import { badge, cell, instant, loader, occupancyBar, pager, plainRow, table, errorLine } from "./parts.js";
import { drain } from "./changes.js";

const PAGE = 100;
const PRESENT = ["live", "draining", "overdue"];

export function show(main, _, { live, signal }) {
  const wrong = errorLine();
  const gone = el("input", { type: "checkbox", id: "gone" });
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const shown = table("Workers, newest first", [
    ["Worker", ""], ["State", ""], ["Running", ""], ["Pools", ""], ["Host", ""], ["Started", ""], ["Last heartbeat", ""], ["Actions", "does"],
  ], { empty: "No workers. Start one with: worker serve --actions MODULE" });
  const cells = (worker) => cellsOf(worker, async () => {
    if (await drain(worker)) {
      say(`${worker.name} is draining`);
      loading.now();
    }
  });
  const loading = loader(async (mine) => {
    const query = { state: gone.checked ? [] : PRESENT, limit: PAGE, cursor };
    const page = await ask("GET", "/workers", { query, signal: mine });
    shown.update(page.items, (each) => each.id, plainRow(cells));
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
    wrong, shown.node, pages.node);
  loading.now();
}

function cellsOf(worker, act) {
  const bar = occupancyBar();
  bar.update(worker.running, worker.concurrency);
  return [
    el("th", { scope: "row" }, worker.name, el("span", { class: "id" }, worker.id)),
    cell("State", {}, badge(worker.state)),
    cell("Running", {}, bar.node),
    cell("Pools", {}, worker.pools.join(", ")),
    cell("Host", {}, `${worker.host}, process ${worker.pid}`),
    cell("Started", {}, instant(worker.started_at, { ago: true })),
    cell("Last heartbeat", {}, instant(worker.renewed_at, { ago: true })),
    cell("", { class: "does" }, worker.state === "live"
      ? el("button", { type: "button", "aria-label": `Drain ${worker.name}`, on: { click: act } }, "Drain") : null),
  ];
}
