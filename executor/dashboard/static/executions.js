// The screen of executions, newest first; search and page are kept in the address.

import { el, setChildren } from "./dom.js";
import { between, duration } from "./format.js";
import { ask } from "./api.js";
import { elapsed, errorLine, executionLink, instant, listPages, loader, none, shortId, statusOf, table }
  from "./parts.js";
import { bulkBar } from "./bulk.js";
import { bulkFilterOf, searchForm } from "./executions_search.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
const NOT_LOADED = "The list could not be loaded.";
const NOT_SHOWN = "The list does not show this search yet.";
const WRONG = "Correct the search first.";
const ONE_KEY = "An idempotency key names one execution: select it in the list.";

const COLUMNS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", (each) => el("div", {}, el("a", { href: queueLink(each) }, each.action_ref),
    each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key))],
  ["Status", "", statusOf],
  ["Error", "error", errorOf],
  ["Created", "", (each) => instant(each.created_at)],
  ["Waited", "number", (each) => (each.started_at ? duration(between(each.created_at, each.started_at))
    : "–")],
  ["Duration", "number", ran],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => shortId(each.worker_id)],
];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  let listed = null; // the search of the rows that are shown
  let isFailed = false;
  const search = searchForm(parameters, { changed, typed: () => bulk.describe() });
  const bulk = bulkBar({ filter: () => listed && bulkFilterOf(listed), blocked,
    changed: () => loading.now() });
  const shown = table("Executions, newest first", [bulk.column, ...COLUMNS],
    { empty: "No matching executions." });
  const pages = listPages({ parameters, path: "executions", search: search.address,
    reload: () => loading.now() });
  const loading = loader(async (mine) => {
    if (search.check()) return;
    const query = search.query();
    const page = await ask("GET", "/executions",
      { query: { ...query, limit: PAGE, cursor: pages.cursor() }, signal: mine });
    [listed, isFailed] = [query, false];
    shown.update(page.items);
    bulk.update(page.items);
    pages.update(page.next_cursor);
    setChildren(words, ...wordsOf(page));
    outdate();
  }, { every: 3000, signal, wrong, failed: () => { isFailed = true; outdate(); } });

  /** Why no change can be made of what is shown: it must be what the form says. */
  function blocked() {
    if (search.check()) return WRONG;
    if (isFailed) return NOT_LOADED;
    const query = search.query();
    if (JSON.stringify(query) !== JSON.stringify(listed)) return NOT_SHOWN;
    return query.idempotency_key && !bulk.isSelecting() ? ONE_KEY : null;
  }
  /** Hide the rows of another search: they would look like the result of this one. */
  function outdate() {
    const isOther = JSON.stringify(search.query()) !== JSON.stringify(listed)
      && (isFailed || search.check() !== null);
    for (const part of [shown.node, pages.node, words]) part.classList.toggle("outdated", isOther);
    bulk.describe();
  }
  function changed() {
    outdate();
    pages.changed();
  }
  // What is selected keeps its position: the list is not reloaded meanwhile.
  live.on("overview", () => pages.isFirst() && !bulk.isSelecting() && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Executions"), goTo()), search.tabs, search.node,
    wrong, bulk.node, words,
    shown.node, pages.node);
  bulk.describe();
  loading.now();
}

/** A request reads a bounded part of the history: a short page is not necessarily the last one. */
function wordsOf({ items, next_cursor: next, searched_until: until }) {
  if (until) return ["The search was cut: executions created since ", instant(until),
    " were searched. The next page continues with older ones."];
  return items.length < PAGE && next ? ["The next page may contain more."] : [];
}

/** The form that opens one execution. */
function goTo() {
  const input = el("input", { type: "text", id: "go-to", inputmode: "numeric", pattern: "#?[1-9][0-9]{0,18}",
    required: true, size: 10 });
  const form = el("form", { class: "field search" }, el("label", { for: "go-to" }, "Open by ID"), input);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/executions/${input.value.replace("#", "").trim()}`;
  });
  return form;
}

function errorOf({ error, status }) {
  if (!error) return none("–");
  const whole = [error.type, error.message].filter(Boolean).join(": ");
  return el("span", { class: `error-text ${status}`, title: whole }, whole);
}

function ran({ status, started_at: started, completed_at: completed }) {
  if (!started) return "–";
  return status === "running" ? elapsed(started) : duration(between(started, completed));
}
