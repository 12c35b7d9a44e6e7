// The screen of executions; search and page are kept in the address.

import { el, render } from "./dom.js";
import { between, duration } from "./format.js";
import { bulkBar } from "./bulk.js";
import { queryOf } from "./api.js";
import { bulkFilterOf, builtInSearches, searchForm } from "./executions_search.js";
import { list } from "./list.js";
import { actionOf, elapsed, errorOf, executionLink, head, instant, shortId, statusOf } from "./parts.js";
import { savedFilters } from "./saved_filters.js";
import { table } from "./table.js";

const PAGE = 50;
const NOT_LOADED = "The list could not be loaded.";
const NOT_SHOWN = "The list does not show this search yet.";
const WRONG = "Correct the search first.";
const ONE_KEY = "An idempotency key names one execution: select it in the list.";

const COLUMNS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", (each) => el("div", {}, actionOf(each))],
  ["Status", "", statusOf],
  ["Error", "error", (each) => errorOf(each.error, each.status)],
  ["Created", "", (each) => instant(each.created_at)],
  ["Waited", "number", (each) => (each.started_at ? duration(between(each.created_at, each.started_at))
    : "–")],
  ["Duration", "number", ran],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => shortId(each.worker_id)],
];

export function show(main, address, context) {
  const words = el("p", { class: "said", role: "status" });
  let listed = null; // the search of the rows that are shown
  let isFailed = false;
  const search = searchForm(address.parameters, { changed, typed: () => bulk.describe() });
  const bulk = bulkBar({ filter: () => listed && bulkFilterOf(listed), blocked,
    changed: () => executions.now() });
  const saved = savedFilters("executions", builtInSearches(), () => queryOf(search.address()));
  const shown = table("Executions", [bulk.column, ...COLUMNS],
    { empty: "No matching executions." });
  const executions = list(address, context, {
    path: "executions", table: shown, size: PAGE, every: 3000, search: search.address,
    query: () => (search.check() ? null : search.query()),
    // What is selected keeps its position: the list is not reloaded meanwhile.
    follows: () => executions.pages.isFirst() && !bulk.isSelecting(),
    loaded(page, asked) {
      [listed, isFailed] = [asked, false];
      bulk.update(page.items);
      render(words, wordsOf(page, asked.order));
      outdate();
    },
    failed() {
      isFailed = true;
      outdate();
    },
  });

  function isListed() {
    return JSON.stringify(search.query()) === JSON.stringify(listed);
  }
  /** Why no change can be made of what is shown: it must be what the form says. */
  function blocked() {
    if (search.check()) return WRONG;
    if (isFailed) return NOT_LOADED;
    if (!isListed()) return NOT_SHOWN;
    return search.query().idempotency_key && !bulk.isSelecting() ? ONE_KEY : null;
  }
  /** Hide the rows of another search: they would look like the result of this one. */
  function outdate() {
    const isOther = !isListed() && (isFailed || search.check() !== null);
    for (const part of [...executions.nodes, words]) part.classList.toggle("outdated", isOther);
    bulk.describe();
  }
  function changed() {
    outdate();
    saved.draw();
    executions.pages.changed();
  }
  main.append(head("Executions", goTo()), saved.node, search.tabs, search.node, executions.wrong, bulk.node,
    words, ...executions.nodes);
  bulk.describe();
  executions.now();
}

/** A request reads a bounded part of the history: a short page is not necessarily the last one. */
function wordsOf({ items, next_cursor: next, searched_until: until }, order) {
  if (until) return ["The search was cut: executions created ", order ? "until " : "since ", instant(until),
    ` were searched. The next page continues with ${order ? "newer" : "older"} ones.`];
  return items.length < PAGE && next ? ["The next page may contain more."] : [];
}

/** The form that opens one execution. */
function goTo() {
  const input = el("input", { type: "text", id: "go-to", inputmode: "numeric", pattern: "#?[1-9][0-9]{0,18}",
    required: true, size: 10 });
  const submit = (event) => {
    event.preventDefault();
    location.hash = `#/executions/${input.value.replace("#", "").trim()}`;
  };
  return el("form", { class: "field search", on: { submit } },
    el("label", { for: "go-to" }, "Open by ID"), input);
}

function ran({ status, started_at: started, completed_at: completed }) {
  if (!started) return "–";
  return status === "running" ? elapsed(started) : duration(between(started, completed));
}
