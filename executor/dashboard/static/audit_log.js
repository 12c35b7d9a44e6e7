// What operators did: the screen of the whole audit log, and the section beside each subject.

import { el } from "./dom.js";
import { counted } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { filterForm, list, loader, pager } from "./list.js";
import { errorLine, executionLink, head, instant, none, poolLink, queueLink, resourceLink, workerLink }
  from "./parts.js";
import { table } from "./table.js";

const PAGE = 50;
const FIELDS_SHOWN = 6;
const KINDS = [
  "action", "resource", "pool", "schedule", "execution", "executions", "worker", "dead_letter", "webhook",
  "token", "token_file", "account", "database",
];
const VERBS = [
  "created", "changed", "limit_changed", "paused", "resumed", "deleted", "cancelled", "retried", "drained",
  "acknowledged", "replayed", "purged", "revoked", "rotated", "migrated", "restored",
];
const FIELDS = [
  ["subject_kind", "Kind", anyOf(KINDS)], ["subject", "Subject", "text", "reports.render"],
  ["action_ref", "Action", "text", "reports.render"],
  ["verb", "Change", anyOf(VERBS)], ["user", "By", "text", "alice"],
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
const WITH_SUBJECT = [...COLUMNS.slice(0, 4), ["Subject", "", subjectOf], ...COLUMNS.slice(4)];

/** The screen of the whole log. */
export function show(main, address, context) {
  const form = filterForm(FIELDS, address.parameters);
  const shown = table("Changes, newest first", WITH_SUBJECT,
    { empty: "No changes recorded for this search." });
  const log = list(address, context,
    { path: "audit-log", table: shown, search: form.values, follows: () => log.pages.isFirst() });
  form.node.addEventListener("change", log.pages.changed);
  main.append(head("Audit log"), form.node, log.wrong, el("div", { class: "changes" }, shown.node),
    log.pages.node);
  log.now();
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

function anyOf(values) {
  return [["", "Any"], ...values.map((value) => [value, wordsOf(value)])];
}

function wordsOf(name) {
  return name.replaceAll("_", " ");
}

/** What was changed, with a link to its screen if it has one. */
function subjectOf({ subject_kind: kind, subject, action_ref: ref }) {
  const actionLink = (name) => el("a", { href: queueLink({ action_ref: name }) }, name);
  const link = {
    action: actionLink, execution: executionLink, webhook: executionLink, resource: resourceLink,
    pool: poolLink, worker: (name) => el("a", { href: workerLink(name) }, name),
  }[kind];
  return el("div", {}, `${wordsOf(kind)} `, link ? link(subject) : subject,
    ref !== null && kind !== "action" && [" of ", actionLink(ref)]);
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
