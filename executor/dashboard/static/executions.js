// The screen of executions, newest first; the filters are kept in the address.

import { el, text } from "./dom.js";
import { between, duration } from "./format.js";
import { ask, queryOf } from "./api.js";
import { badge, instant, loader, pager, shortId, table, errorLine } from "./parts.js";
import { executionLink } from "./queue.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
export const STATUSES = [
  "delayed", "queued", "scheduled", "running", "completed", "failed", "timeout", "cancelled", "expired", "abandoned",
];
const FIELDS = [
  ["action_ref", "Action", "text", "reports.render"],
  ["concurrency_key", "Concurrency key", "text", "customer-7"],
  ["priority", "Priority", "text", "1 (first) to 5 (last)"],
  ["metadata", "Metadata", "text", "order:4711"],
  ["worker_id", "Worker", "text", ""],
  ["created_after", "Created after", "datetime-local", ""],
  ["created_before", "Created before", "datetime-local", ""],
];

const COLUMNS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", (each) => el("div", {}, el("a", { href: queueLink(each) }, each.action_ref),
    each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key))],
  ["Status", "", (each) => badge(each.status)],
  ["Created", "", (each) => instant(each.created_at, { ago: true })],
  ["Waited", "number", (each) => (each.started_at ? duration(between(each.created_at, each.started_at)) : "–")],
  ["Duration", "number", ran],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => shortId(each.worker_id)],
];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  let cursor = null;
  const form = filters(parameters);
  const shown = table("Executions, newest first", COLUMNS, { empty: "No matching executions." });
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/executions", { query: { ...queryFrom(form), limit: PAGE, cursor }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor, null);
    // A request reads a bounded part of the history: a short page is not necessarily the last one.
    text(words, page.items.length < PAGE && page.next_cursor ? "The next page may contain more." : "");
  }, { every: 3000, signal, wrong });

  form.addEventListener("change", () => {
    cursor = null;
    pages.reset();
    history.replaceState(null, "", `#/executions${queryOf(Object.fromEntries(filled(form)))}`);
    loading.now();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  live.on("overview", () => pages.isFirst() && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Executions"), goTo()), form, wrong, words, shown.node, pages.node);
  loading.now();
}

/** The form that opens one execution. */
function goTo() {
  const input = el("input", { type: "text", id: "go-to", inputmode: "numeric", pattern: "#?[1-9][0-9]{0,18}", required: true, size: 10 });
  const form = el("form", { class: "field search" }, el("label", { for: "go-to" }, "Open by ID"), input);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/executions/${input.value.replace("#", "").trim()}`;
  });
  return form;
}

function filters(parameters) {
  const chosen = parameters.getAll("status").flatMap((each) => each.split(","));
  const states = el("fieldset", { class: "choices" }, el("legend", {}, "Status"), STATUSES.map((status) =>
    el("label", {}, el("input", { type: "checkbox", name: "status", value: status, checked: chosen.includes(status) }), status)));
  const fields = FIELDS.map(([name, label, type, example]) => {
    const id = `filter-${name}`;
    return el("div", { class: "field" }, el("label", { for: id }, label),
      el("input", { type, id, name, placeholder: example || null, value: parameters.get(name) ?? "", autocomplete: "off" }));
  });
  const open = chosen.length > 0 || FIELDS.some(([name]) => parameters.get(name));
  return el("form", { class: "filters" },
    el("details", { open }, el("summary", {}, "Filters"), el("div", { class: "fields" }, fields), states));
}

/** The filters as they are kept in the address. */
function filled(form) {
  const entries = FIELDS.map(([name]) => [name, form.elements[name].value.trim()]);
  const status = [...form.querySelectorAll("input[name=status]:checked")].map((box) => box.value).join(",");
  return [...entries, ["status", status]].filter(([, value]) => value);
}

/** The filters as the API takes them. */
function queryFrom(form) {
  const query = Object.fromEntries(filled(form));
  for (const name of ["created_after", "created_before"]) {
    if (query[name]) query[name] = new Date(query[name]).toISOString();
  }
  if (query.status) query.status = query.status.split(",");
  return query;
}

function ran({ status, started_at: started, completed_at: completed }) {
  if (!started) return "–";
  return status === "running" ? instant(started, { ago: true }) : duration(between(started, completed));
}
