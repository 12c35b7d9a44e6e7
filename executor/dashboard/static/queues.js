// The screen of all queues: the executor sorts, searches and paginates; events update the rows of a page.

import { attribute, el, setChildren, text } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { ask, queryOf } from "./api.js";
import { afterChange, cell, elapsed, errorLine, failuresOf, listPages, loader, occupancyBar, sparkline,
  table } from "./parts.js";
import { changeLimit, changePause } from "./changes.js";

const PAGE = 50;
const SORTS = [
  ["name", "Queue", ""], ["occupancy", "Slots", ""], ["waiting", "Waiting", "number"],
  ["oldest", "Oldest waiting", "number"],
  ["failures", "Failed", "number"], ["rate", "Completed /s", "number"],
];

export function queueLink({ action_ref: ref, concurrency_key: key }) {
  return `#/queues/${encodeURIComponent(ref)}${queryOf({ key })}`;
}

/** The action of an execution, with its key, as a link to their queue. */
export function actionOf({ action_ref: ref, concurrency_key: key = null }) {
  return [el("a", { href: queueLink({ action_ref: ref, concurrency_key: key }) }, ref),
    key && el("span", { class: "key" }, key)];
}

export function show(main, { parameters }, { live, signal }) {
  const query = { search: parameters.get("search") ?? "", sort: parameters.get("sort") ?? "waiting" };
  const rows = new Map();
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  const search = el("input", { type: "search", id: "search", value: query.search, autocomplete: "off",
    spellcheck: "false" });
  const pages = listPages({ parameters, path: "queues", search: () => query, reload: () => loading.now() });
  const headings = SORTS.map(([sort, name, kind]) => [sort, heading(name, kind, () => resort(sort))]);
  const change = (act, queue, message) => afterChange(act(queue), message, loading.now);
  const shown = table("Queues", [
    ...headings.slice(0, 5).map(([, head]) => head.node),
    ["Admitted /s", "number"], headings[5][1].node, ["Last 5 minutes", ""], ["Actions", "does"],
  ], { empty: "No matching queues.", keyOf, make: (queue) => rowOf(queue, rows, change) });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/queues",
      { query: { ...query, limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    const listed = new Set(page.items.map(keyOf));
    for (const key of [...rows.keys()]) if (!listed.has(key)) rows.delete(key);
    pages.update(page.next_cursor, Math.ceil(page.total / PAGE));
    text(words, counted(page.total, "queue") + (page.truncated ? " shown, the busiest ones" : ""));
  }, { every: 2000, signal, wrong });

  function resort(sort) {
    query.sort = sort;
    for (const [name, head] of headings) head.update(name === sort);
    pages.refined();
  }
  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => {
      query.search = search.value.trim();
      pages.refined();
    }, 250);
  });
  signal.addEventListener("abort", () => clearTimeout(typed));
  live.on("queues", ({ items }) => {
    for (const queue of items) rows.get(keyOf(queue))?.update(queue);
    loading.soon();
  }, signal);
  live.on("overview", loading.soon, signal);
  live.on("opening", loading.soon, signal);

  main.append(
    el("div", { class: "head" }, el("h1", {}, "Queues"),
      el("div", { class: "field search" }, el("label", { for: "search" }, "Search by action or key"),
        search)),
    wrong, words, shown.node, pages.node);
  for (const [sort, head] of headings) head.update(sort === query.sort);
  loading.now();
}

function keyOf({ action_ref: ref, concurrency_key: key }) {
  return JSON.stringify([ref, key]);
}

function heading(name, kind, sort) {
  const node = el("th", { scope: "col", class: kind },
    el("button", { type: "button", class: "sort", on: { click: sort } }, name));
  return {
    node,
    update(is) {
      attribute(node, "aria-sort", is ? (name === "Queue" || name === "Oldest waiting" ? "ascending"
        : "descending") : null);
    },
  };
}

function rowOf(first, rows, change) {
  let queue = first;
  const bar = occupancyBar();
  const spark = sparkline();
  const states = el("span", { class: "states" });
  const [waiting, oldest, failed, enqueued, completed] =
    [el("span"), el("span"), el("span"), el("span"), el("span")];
  const name = `${first.action_ref}${first.concurrency_key === null ? "" : ` ${first.concurrency_key}`}`;
  const pause = el("button", {
    type: "button", needs: "POST /actions/{ref}/pause",
    on: { click: () => change(changePause, queue,
      queue.paused ? `${queue.action_ref} resumed` : `${queue.action_ref} paused`) },
  });
  const limit = el("button", {
    type: "button", needs: "PATCH /actions/{ref}", "aria-label": `Limit of ${first.action_ref}`,
    on: { click: () => change(changeLimit, queue, `Limit of ${queue.action_ref} changed`) },
  }, "Limit");
  const node = el("tr", {},
    el("th", { scope: "row", class: "name" }, el("a", { href: queueLink(first) }, first.action_ref),
      first.concurrency_key === null ? null : el("span", { class: "key", title: "Concurrency key" },
        first.concurrency_key), states),
    cell("Slots", {}, bar.node),
    cell("Waiting", { class: "number" }, waiting),
    cell("Oldest waiting", { class: "number" }, oldest),
    cell("Failed", { class: "number" }, failed),
    cell("Admitted /s", { class: "number" }, enqueued),
    cell("Completed /s", { class: "number" }, completed),
    cell("Last 5 minutes", {}, spark.node),
    cell("", { class: "does" }, pause, limit));
  const row = {
    node,
    update(now) {
      queue = now;
      bar.update(now.active_count, now.max_concurrent);
      text(waiting, count(now.queue_length));
      if (oldest.dataset.at !== String(now.oldest_enqueued_at)) {
        oldest.dataset.at = now.oldest_enqueued_at;
        setChildren(oldest, elapsed(now.oldest_enqueued_at));
      }
      const failures = JSON.stringify(now.failures);
      if (failed.dataset.of !== failures) {
        failed.dataset.of = failures;
        setChildren(failed, failuresOf(now));
      }
      text(enqueued, rate(now.enqueued_per_second));
      text(completed, rate(now.completed_per_second));
      if (now.depths) spark.update(now.depths);
      const flags = [now.paused && "paused", !now.served && "no_worker"].filter(Boolean);
      if (states.dataset.flags !== String(flags)) {
        states.dataset.flags = flags;
        setChildren(states,
          ...flags.map((state) => el("span", { class: `badge ${state}` }, state.replace("_", " "))));
      }
      text(pause, now.paused ? "Resume" : "Pause");
      attribute(pause, "aria-label", `${now.paused ? "Resume" : "Pause"} ${name}`);
    },
  };
  rows.set(keyOf(first), row);
  return row;
}
