// What operators did to a subject; shown beside it.

import { el, text } from "./dom.js";
import { ask, Problem } from "./api.js";
import { errorLine, instant, table } from "./parts.js";

const none = (words) => el("span", { class: "none" }, words);
const COLUMNS = [
  ["Changed", "row", (each) => instant(each.recorded_at)],
  ["By", "", (each) => each.user ?? none("unknown")],
  ["From", "", (each) => [each.channel, each.address].filter(Boolean).join(", ") || none("unknown")],
  ["Change", "", (each) => each.verb],
  ["Before", "", (each) => (isNew(each) ? none("–") : fieldsOf(each.before))],
  // Of what is new, the fields that say something.
  ["After", "", (each) => fieldsOf(isNew(each) ? withoutNulls(each.after) : each.after)],
];
const SUBJECT = ["Subject", "", (each) => each.subject];

/** A section that loads when it is opened. `query` selects rows of the audit log. */
export function auditLogOf(query, signal) {
  const columns = query.subject ? COLUMNS : [...COLUMNS.slice(0, 4), SUBJECT, ...COLUMNS.slice(4)];
  const shown = table("Changes, newest first", columns, { empty: "No changes recorded." });
  const wrong = errorLine();
  const node = el("details", { class: "changes" }, el("summary", {}, "Changes"), wrong, shown.node);
  node.addEventListener("toggle", async () => {
    if (!node.open) return;
    try {
      const page = await ask("GET", "/audit-log", { query: { ...query, limit: 100 }, signal });
      shown.update(page.items);
    } catch (error) {
      if (error instanceof Problem) text(wrong, error.message);
      else if (!signal.aborted) throw error;
    }
  });
  return node;
}

function isNew({ before }) {
  return Object.keys(before ?? {}).length === 0;
}

function withoutNulls(fields) {
  return Object.fromEntries(Object.entries(fields ?? {}).filter(([, value]) => value !== null));
}

function fieldsOf(fields) {
  return el("div", {}, Object.entries(fields ?? {}).map(([name, value]) => el("code", { class: "pair" }, `${name}: ${JSON.stringify(value)}`)));
}
