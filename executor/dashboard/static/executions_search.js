// The search of executions: fields, tabs of statuses, and what they say as a query, as an address and as a
// bulk filter.

import { attribute, el, render, text } from "./dom.js";
import { queryOf } from "./api.js";
import { choices, filterForm } from "./list.js";
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
  ["created_after", "Created after", "datetime-local"],
  ["created_before", "Created before", "datetime-local"],
  ["completed_after", "Ended after", "datetime-local"],
  ["completed_before", "Ended before", "datetime-local"],
  ["priority", "Priority", PRIORITIES],
  ["worker_id", "Worker", "text"],
  ["order", "Order", [["", "Newest first"], ["oldest", "Oldest first"]]],
];

/** Searches that are always at hand, as [name, query] pairs. */
export function builtInSearches() {
  const today = new Date(new Date().setHours(0, 0, 0, 0)).toISOString();
  return [
    ["Failed today", { completed_after: today, status: "failed,timeout,abandoned" }],
    ["Waiting, oldest first", { order: "oldest", status: "delayed,queued" }],
    ["Running, oldest first", { order: "oldest", status: "scheduled,running" }],
  ].map(([name, search]) => [name, queryOf(search)]);
}

/**
 * The form with the search of the address; `changed` is called for each new search, `typed` while one types.
 */
export function searchForm(parameters, { changed, typed }) {
  const given = parameters.getAll("status").flatMap((each) => each.split(",")).filter(Boolean);
  const statuses = choices("Status", STATUSES, given);
  const isTab = (wanted) => String(statuses.chosen().sort()) === String([...wanted].sort());
  const form = filterForm(FIELDS, parameters, { more: statuses.node,
    isOpen: !TABS.some(([, wanted]) => isTab(wanted)) });
  const metadata = form.node.elements.metadata;
  const fault = el("small", { class: "fault", id: "filter-metadata-fault", role: "status" });
  metadata.setAttribute("aria-describedby", fault.id);
  metadata.after(fault);
  const node = form.node;
  const line = el("div");

  /** The filled conditions by name; `status` is a list. */
  function query() {
    const status = statuses.chosen();
    return status.length ? { ...form.values(), status } : form.values();
  }
  /** Show what is wrong beside its field, and return it; null if nothing is. */
  function check() {
    const given = metadata.value.trim();
    const found = given && given.indexOf(":") < 1 ? "Expected key:value, like order:4711." : null;
    text(fault, found);
    attribute(metadata, "aria-invalid", found ? "true" : null);
    return found;
  }
  function describe() {
    render(line, tabs("Status", TABS, isTab, (wanted) => {
      statuses.choose(wanted);
      whole();
    }));
    check();
  }
  function whole() {
    describe();
    changed();
  }
  node.addEventListener("change", whole);
  node.addEventListener("input", typed);
  describe();
  return { node, tabs: line, check, query,
    /** The search as it is kept in the address. */
    address: () => ({ ...query(), status: statuses.chosen().join(",") }) };
}

/** A search as a bulk operation takes it; null if it cannot be one. */
export function bulkFilterOf({ metadata, priority, order: _, idempotency_key: idempotencyKey, ...found }) {
  if (idempotencyKey) return null;
  if (priority) found.priority = Number(priority);
  if (metadata) {
    const colon = metadata.indexOf(":");
    found.metadata = { [metadata.slice(0, colon)]: metadata.slice(colon + 1) };
  }
  return found;
}
