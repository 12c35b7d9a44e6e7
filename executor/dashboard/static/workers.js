// Workers: what each runs, and having one leave in good order.

import { el, say } from "./dom.js";
import { ask } from "./api.js";
import { badge, cell, instant, loader, occupancyBar, pager, plainRow, table, wrongPlace } from "./parts.js";
import { drain } from "./changes.js";

const PAGE = 100;
const THERE = ["live", "draining", "overdue"];

export function show(main, _, { live, signal }) {
  const wrong = wrongPlace();
  const gone = el("input", { type: "checkbox", id: "gone" });
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const shown = table("Workers, the newest first", [
    ["Worker", ""], ["State", ""], ["Runs", ""], ["Pools", ""], ["Place", ""], ["Started", ""], ["Renewed", ""], ["Change", "does"],
  ], { empty: "No worker is there: executions wait. Start one with: worker serve --actions your.module" });
  const cells = (worker) => cellsOf(worker, async () => {
    if (await drain(worker)) {
      say(`${worker.name} drains`);
      loading.now();
    }
  });
  const loading = loader(async (mine) => {
    const query = { state: gone.checked ? [] : THERE, limit: PAGE, cursor };
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
      el("label", { class: "choice" }, gone, "Also those that left or were lost")),
    wrong, shown.node, pages.node);
  loading.now();
}

function cellsOf(worker, act) {
  const bar = occupancyBar();
  bar.update(worker.running, worker.concurrency);
  return [
    el("th", { scope: "row" }, worker.name, el("span", { class: "id" }, worker.id)),
    cell("State", {}, badge(worker.state)),
    cell("Runs", {}, bar.node),
    cell("Pools", {}, worker.pools.join(", ")),
    cell("Place", {}, `${worker.host}, process ${worker.pid}`),
    cell("Started", {}, instant(worker.started_at, { ago: true })),
    cell("Renewed", {}, instant(worker.renewed_at, { ago: true })),
    cell("", { class: "does" }, worker.state === "live"
      ? el("button", { type: "button", "aria-label": `Drain ${worker.name}`, on: { click: act } }, "Drain") : null),
  ];
}
