// The screen of executions, newest first; search and page are kept in the address.

import { attribute, el, setChildren } from "./dom.js";
import { between, duration } from "./format.js";
import { ask, queryOf } from "./api.js";
import { badge, elapsed, errorLine, instant, loader, pager, shortId, table } from "./parts.js";
import { bulkBar } from "./bulk.js";
import { executionLink } from "./queue.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
const STATUSES = [
  "delayed", "queued", "scheduled", "running", "completed", "failed", "timeout", "cancelled", "expired", "abandoned",
];
const TABS = [
  ["All", []], ["Failed", ["failed", "timeout", "abandoned"]], ["Waiting", ["delayed", "queued"]],
  ["Running", ["scheduled", "running"]], ["Completed", ["completed"]], ["Cancelled", ["cancelled"]], ["Expired", ["expired"]],
];
const FIELDS = [
  ["action_ref", "Action", "text", "reports.render"],
  ["error", "Error contains", "text", "no such customer"],
  ["concurrency_key", "Concurrency key", "text", "customer-7"],
  ["metadata", "Metadata", "text", "order:4711"],
  ["created_after", "Created after", "datetime-local", ""],
  ["created_before", "Created before", "datetime-local", ""],
  ["completed_after", "Ended after", "datetime-local", ""],
  ["completed_before", "Ended before", "datetime-local", ""],
  ["priority", "Priority", "text", "1 (first) to 5 (last)"],
  ["worker_id", "Worker", "text", ""],
];
const INSTANTS = FIELDS.filter(([, , type]) => type === "datetime-local").map(([name]) => name);

const COLUMNS = [
  ["Execution", "row", (each) => executionLink(each.id)],
  ["Action", "", (each) => el("div", {}, el("a", { href: queueLink(each) }, each.action_ref),
    each.concurrency_key === null ? null : el("span", { class: "key" }, each.concurrency_key))],
  ["Status", "", (each) => badge(each.status)],
  ["Error", "error", errorOf],
  ["Created", "", (each) => instant(each.created_at)],
  ["Waited", "number", (each) => (each.started_at ? duration(between(each.created_at, each.started_at)) : "–")],
  ["Duration", "number", ran],
  ["Attempt", "number", (each) => each.attempt],
  ["Worker", "", (each) => shortId(each.worker_id)],
];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  let cursor = parameters.get("cursor");
  const form = filters(parameters);
  const tabs = tabsOf(form, changed);
  const bulk = bulkBar({ filter: () => filterFrom(form), changed: () => loading.now() });
  const shown = table("Executions, newest first", [bulk.column, ...COLUMNS], { empty: "No matching executions." });
  const pages = pager((next, before) => {
    cursor = next;
    keep(before);
    loading.now();
  }, { here: cursor ?? "", before: history.state?.before });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/executions", { query: { ...filled(form), limit: PAGE, cursor }, signal: mine });
    shown.update(page.items);
    bulk.update(page.items);
    pages.update(page.next_cursor, null);
    setChildren(words, ...wordsOf(page));
  }, { every: 3000, signal, wrong });

  /** Make search and page an entry of the browser's history: it opens this screen with them again. */
  function keep(before) {
    const address = `#/executions${queryOf({ ...addressOf(form), cursor })}`;
    if (address !== location.hash) history.pushState({ before }, "", address);
  }
  function changed() {
    cursor = null;
    pages.reset();
    keep([]);
    tabs.update();
    loading.now();
  }
  form.addEventListener("change", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  // What is selected stays in its place: the list is not reloaded meanwhile.
  live.on("overview", () => pages.isFirst() && !bulk.isSelecting() && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Executions"), goTo()), tabs.node, form, wrong, bulk.node, words,
    shown.node, pages.node);
  loading.now();
}

/** A request reads a bounded part of the history: a short page is not necessarily the last one. */
function wordsOf({ items, next_cursor: next, searched_until: until }) {
  if (until) return ["The search was cut: executions created since ", instant(until), " were searched. The next page continues with older ones."];
  return items.length < PAGE && next ? ["The next page may contain more."] : [];
}

/** The tabs of statuses: each sets the checkboxes of its statuses. */
function tabsOf(form, changed) {
  const boxes = [...form.querySelectorAll("input[name=status]")];
  const buttons = TABS.map(([name, statuses]) => el("button", {
    type: "button",
    on: {
      click: () => {
        for (const box of boxes) box.checked = statuses.includes(box.value);
        changed();
      },
    },
  }, name));
  const update = () => {
    const chosen = String(boxes.filter((box) => box.checked).map((box) => box.value).sort());
    TABS.forEach(([, statuses], index) => attribute(buttons[index], "aria-pressed", String(chosen === String([...statuses].sort()))));
  };
  update();
  return { node: el("div", { class: "tabs", role: "group", "aria-label": "Status" }, buttons), update };
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
    const given = parameters.get(name) ?? "";
    const value = type === "datetime-local" ? localTime(given) : given;
    const step = type === "datetime-local" ? 1 : null;
    return el("div", { class: "field" }, el("label", { for: id }, label),
      el("input", { type, id, name, placeholder: example || null, value, step, autocomplete: "off" }));
  });
  const open = FIELDS.some(([name]) => parameters.get(name)) || (chosen.length > 0 && !isTab(chosen));
  return el("form", { class: "filters" },
    el("details", { open }, el("summary", {}, "Filters"), el("div", { class: "fields" }, fields), states));
}

function isTab(statuses) {
  return TABS.some(([, each]) => String([...each].sort()) === String([...statuses].sort()));
}

/** An instant of the address as the local time of an input; the address holds UTC, so that it can be shared. */
function localTime(instant) {
  const at = new Date(instant);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - 60000 * at.getTimezoneOffset()).toISOString().slice(0, 19);
}

/** The filled conditions by name; `status` is a list. */
function filled(form) {
  const entries = FIELDS.map(([name]) => [name, form.elements[name].value.trim()]).filter(([, value]) => value);
  const found = Object.fromEntries(entries);
  for (const name of INSTANTS) if (found[name]) found[name] = new Date(found[name]).toISOString();
  const status = [...form.querySelectorAll("input[name=status]:checked")].map((box) => box.value);
  return status.length ? { ...found, status } : found;
}

/** The search as it is kept in the address. */
function addressOf(form) {
  const found = filled(form);
  return found.status ? { ...found, status: found.status.join(",") } : found;
}

/** The search as a bulk operation takes it. */
function filterFrom(form) {
  const { metadata, priority, ...found } = filled(form);
  if (priority) found.priority = Number(priority);
  if (metadata) {
    const colon = metadata.indexOf(":");
    found.metadata = { [metadata.slice(0, colon)]: metadata.slice(colon + 1) };
  }
  return found;
}

function errorOf({ error, status }) {
  if (!error) return el("span", { class: "none" }, "–");
  const whole = [error.type, error.message].filter(Boolean).join(": ");
  return el("span", { class: `error-text ${status}`, title: whole }, whole);
}

function ran({ status, started_at: started, completed_at: completed }) {
  if (!started) return "–";
  return status === "running" ? elapsed(started) : duration(between(started, completed));
}
