// What operators did: the screen of the whole audit log, and the section beside each subject.

import { el } from "./dom.js";
import { counted, localTime } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { errorLine, executionLink, instant, listPages, loader, none, pager, table, workerLink }
  from "./parts.js";
import { queueLink } from "./queues.js";

const PAGE = 50;
const FIELDS_SHOWN = 6;
const KINDS = [
  "action", "resource", "pool", "execution", "executions", "worker", "dead_letter", "webhook", "token",
  "token_file", "account", "database",
];
const VERBS = [
  "created", "changed", "limit_changed", "paused", "resumed", "deleted", "cancelled", "retried", "drained",
  "replayed",
  "purged", "revoked", "rotated", "migrated", "restored",
];
const FIELDS = [
  ["subject_kind", "Kind", KINDS], ["subject", "Subject", "text", "reports.render"],
  ["action_ref", "Action", "text", "reports.render"],
  ["verb", "Change", VERBS], ["user", "By", "text", "alice"],
  ["recorded_after", "After", "datetime-local"], ["recorded_before", "Before", "datetime-local"],
];

const COLUMNS = [
  ["Changed", "row", (each) => instant(each.recorded_at)],
  ["By", "", (each) => each.user ?? none("unknown")],
  ["From", "", (each) => [each.channel, each.address].filter(Boolean).join(", ") || none("unknown")],
  ["Change", "", (each) => wordsOf(each.verb)],
  ["Before", "", (each) => (isNew(each) ? none("–") : fieldsOf(each.before))],
  // Of what is new, the fields that say something.
  ["After", "", (each) => fieldsOf(isNew(each) ? withoutNulls(each.after) : each.after)],
];
const SUBJECT = ["Subject", "", subjectOf];
const WITH_SUBJECT = [...COLUMNS.slice(0, 4), SUBJECT, ...COLUMNS.slice(4)];

/** The screen of the whole log. */
export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const open = FIELDS.some(([name]) => parameters.get(name));
  const form = el("form", { class: "filters" }, el("details", { open }, el("summary", {}, "Filters"),
    el("div", { class: "fields" }, FIELDS.map((field) => fieldOf(field, parameters.get(field[0]) ?? "")))));
  const search = () => Object.fromEntries(FIELDS.map(([name, , kind]) => {
    const value = form.elements[name].value.trim();
    return [name, kind === "datetime-local" && value ? new Date(value).toISOString() : value];
  }));
  const pages = listPages({ parameters, path: "audit-log", search, reload: () => loading.now() });
  const shown = table("Changes, newest first", WITH_SUBJECT,
    { empty: "No changes recorded for this search." });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/audit-log",
      { query: { ...search(), limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  form.addEventListener("change", pages.changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  live.on("overview", () => pages.isFirst() && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, "Audit log")), form, wrong,
    el("div", { class: "changes" }, shown.node), pages.node);
  loading.now();
}

/** A section that loads when it is opened. `query` selects rows of the audit log. */
export function auditLogOf(query, signal) {
  const shown = table("Changes, newest first", query.subject ? COLUMNS : WITH_SUBJECT,
    { empty: "No changes recorded." });
  const wrong = errorLine();
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/audit-log", { query: { ...query, limit: PAGE, cursor }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  const node = el("details", { class: "changes" }, el("summary", {}, "Changes"), wrong, shown.node,
    pages.node);
  node.addEventListener("toggle", () => node.open && loading.now());
  return node;
}

function fieldOf([name, label, kind, example], given) {
  const id = `audit-${name}`;
  const control = Array.isArray(kind)
    ? el("select", { id, name }, el("option", { value: "" }, "Any"),
      kind.map((value) => el("option", { value, selected: value === given }, wordsOf(value))))
    : el("input", { id, name, type: kind, placeholder: example, autocomplete: "off",
      ...(kind === "text" ? { value: given } : { step: 1, value: localTime(given) }) });
  return el("div", { class: "field" }, el("label", { for: id }, label), control);
}

function wordsOf(name) {
  return name.replaceAll("_", " ");
}

/** What was changed, with a link to its screen if it has one. */
function subjectOf({ subject_kind: kind, subject, action_ref: ref }) {
  const link = {
    action: () => queueLink({ action_ref: subject }), worker: () => workerLink(subject),
    resource: () => `#/resources/${encodeURIComponent(subject)}`,
    pool: () => `#/pools/${encodeURIComponent(subject)}`,
  }[kind];
  const name = kind === "execution" || kind === "webhook" ? executionLink(subject)
    : link ? el("a", { href: link() }, subject) : subject;
  const action = ref !== null && kind !== "action" ? el("a", { href: queueLink({ action_ref: ref }) }, ref)
    : null;
  return el("div", {}, `${wordsOf(kind)} `, name, action && [" of ", action]);
}

function isNew({ before }) {
  return Object.keys(before ?? {}).length === 0;
}

function withoutNulls(fields) {
  return Object.fromEntries(Object.entries(fields ?? {}).filter(([, value]) => value !== null));
}

/** The fields with their values; many of them are folded. */
function fieldsOf(fields) {
  const pairs = Object.entries(fields ?? {})
    .map(([name, value]) => el("code", { class: "pair" }, `${name}: ${writeJson(value)}`));
  return pairs.length > FIELDS_SHOWN ? el("details", {}, el("summary", {}, counted(pairs.length, "field")),
    pairs) : el("div", {}, pairs);
}
