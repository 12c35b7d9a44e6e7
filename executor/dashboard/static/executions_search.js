// The search of executions: fields, tabs of statuses, and what they say as a query, as an address and as a
// bulk filter.

import { attribute, el, text } from "./dom.js";
import { localTime } from "./format.js";
import { tabs } from "./parts.js";

const STATUSES = [
  "delayed", "queued", "scheduled", "running", "completed", "failed", "timeout", "cancelled", "expired",
  "abandoned",
];
const TABS = [
  ["All", []], ["Failed", ["failed", "timeout", "abandoned"]], ["Waiting", ["delayed", "queued"]],
  ["Running", ["scheduled", "running"]], ["Completed", ["completed"]], ["Cancelled", ["cancelled"]],
  ["Expired", ["expired"]],
];
const PRIORITIES = [["", "Any"], ["1", "1 (first)"], ["2", "2"], ["3", "3"], ["4", "4"], ["5", "5 (last)"]];
const FIELDS = [
  ["action_ref", "Action", "text", "reports.render"],
  ["error", "Error contains", "text", "no such customer"],
  ["concurrency_key", "Concurrency key", "text", "customer-7"],
  ["idempotency_key", "Idempotency key", "text", "invoice-2041"],
  ["metadata", "Metadata", "text", "order:4711"],
  ["created_after", "Created after", "datetime-local", ""],
  ["created_before", "Created before", "datetime-local", ""],
  ["completed_after", "Ended after", "datetime-local", ""],
  ["completed_before", "Ended before", "datetime-local", ""],
  ["priority", "Priority", PRIORITIES, ""],
  ["worker_id", "Worker", "text", ""],
];
const INSTANTS = FIELDS.filter(([, , kind]) => kind === "datetime-local").map(([name]) => name);

/**
 * The form with the search of the address; `changed` is called for each new search, `typed` while one types.
 */
export function searchForm(parameters, { changed, typed }) {
  const node = formOf(parameters);
  const statuses = statusTabs(node, whole);
  const fault = node.querySelector(".fault");
  /** Show what is wrong beside its field, and return it; null if nothing is. */
  function check() {
    const { metadata } = filled(node);
    const found = metadata && metadata.indexOf(":") < 1 ? "Expected key:value, like order:4711." : null;
    text(fault, found);
    attribute(node.elements.metadata, "aria-invalid", found ? "true" : null);
    return found;
  }
  function whole() {
    statuses.update();
    check();
    changed();
  }
  node.addEventListener("change", whole);
  node.addEventListener("input", typed);
  node.addEventListener("submit", (event) => event.preventDefault());
  check();
  return { node, tabs: statuses.node, check, query: () => filled(node),
    address: () => addressOf(filled(node)) };
}

/** A search as a bulk operation takes it; null if it cannot be one. */
export function bulkFilterOf({ metadata, priority, idempotency_key: idempotencyKey, ...found }) {
  if (idempotencyKey) return null;
  if (priority) found.priority = Number(priority);
  if (metadata) {
    const colon = metadata.indexOf(":");
    found.metadata = { [metadata.slice(0, colon)]: metadata.slice(colon + 1) };
  }
  return found;
}

/** The tabs of statuses: each sets the checkboxes of its statuses. */
function statusTabs(form, changed) {
  const boxes = [...form.querySelectorAll("input[name=status]")];
  const all = tabs("Status", TABS, (statuses) => {
    for (const box of boxes) box.checked = statuses.includes(box.value);
    changed();
  });
  const update = () => {
    const chosen = String(boxes.filter((box) => box.checked).map((box) => box.value).sort());
    all.update((statuses) => chosen === String([...statuses].sort()));
  };
  update();
  return { node: all.node, update };
}

function formOf(parameters) {
  const chosen = parameters.getAll("status").flatMap((each) => each.split(","));
  const states = el("fieldset", { class: "choices" }, el("legend", {}, "Status"), STATUSES.map((status) =>
    el("label", {}, el("input", { type: "checkbox", name: "status", value: status,
      checked: chosen.includes(status) }), status)));
  const open = FIELDS.some(([name]) => parameters.get(name)) || (chosen.length > 0 && !isTab(chosen));
  return el("form", { class: "filters" }, el("details", { open }, el("summary", {}, "Filters"),
    el("div", { class: "fields" }, FIELDS.map((field) => fieldOf(field, parameters.get(field[0]) ?? ""))),
    states));
}

function fieldOf([name, label, kind, example], given) {
  const id = `filter-${name}`;
  const isInstant = kind === "datetime-local";
  const isChecked = name === "metadata";
  const control = Array.isArray(kind)
    ? el("select", { id, name },
      kind.map(([value, words]) => el("option", { value, selected: value === given }, words)))
    : el("input", {
      type: kind, id, name, placeholder: example || null, value: isInstant ? localTime(given) : given,
      step: isInstant ? 1 : null,
      autocomplete: "off", "aria-describedby": isChecked ? `${id}-fault` : null,
    });
  return el("div", { class: "field" }, el("label", { for: id }, label), control,
    isChecked ? el("small", { class: "fault", id: `${id}-fault`, role: "status" }) : null);
}

function isTab(statuses) {
  return TABS.some(([, each]) => String([...each].sort()) === String([...statuses].sort()));
}

/** The filled conditions by name; `status` is a list. */
function filled(form) {
  const entries = FIELDS.map(([name]) => [name, form.elements[name].value.trim()])
    .filter(([, value]) => value);
  const found = Object.fromEntries(entries);
  for (const name of INSTANTS) if (found[name]) found[name] = new Date(found[name]).toISOString();
  const status = [...form.querySelectorAll("input[name=status]:checked")].map((box) => box.value);
  return status.length ? { ...found, status } : found;
}

/** The search as it is kept in the address. */
function addressOf(found) {
  return found.status ? { ...found, status: found.status.join(",") } : found;
}
