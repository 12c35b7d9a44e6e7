// What the screens of resources and pools have in common: the list of all, and one of them with its queue.

import { el, setChildren, text } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { afterChange, errorLine, executionLink, listPages, loader, occupancyBar, table, termsOf }
  from "./parts.js";
import { block } from "./permissions.js";
import { actionOf } from "./queues.js";

const PAGE = 50;

/** The first columns of what holds something. */
export const HOLDER = [["Execution", "row", (each) => executionLink(each.id)], ["Action", "", actionOf]];
/** The first columns of what waits. */
export const WAITING = [
  ["Position", "", (each) => count(each.position)],
  ...HOLDER,
  ["Priority", "number", (each) => each.priority],
];

/** The list of all of a kind. */
export function showList(main, { parameters }, { live, signal }, { path, title, columns, empty }) {
  const wrong = errorLine();
  const pages = listPages({ parameters, path, reload: () => loading.now() });
  const shown = table(`${title} by name`, columns, { empty, keyOf: (each) => each.name });
  const loading = loader(async (mine) => {
    const query = { limit: PAGE, cursor: pages.cursor() };
    const page = await ask("GET", `/${path}`, { query, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  live.on("opening", loading.soon, signal);
  main.append(el("div", { class: "head" }, el("h1", {}, title)), wrong, shown.node, pages.node);
  loading.now();
}

/**
 * One of a kind: its holders, and the executions that wait for it. Of `kind`, `units` names what is held;
 * `holders` are [caption, columns, sentence if there are none]; `changes` are [route, button, change(gate)],
 * the first of which pauses. `statesOf(gate)`, `factsOf(gate)` and, if given, `update(gate)` receive the page
 * of the queue and the fields that `read(name, signal)` returns. `hint` is shown above what waits, `last`
 * below it.
 */
export function showOne(main, { ref: name, parameters }, { live, signal }, kind) {
  const { path, subject } = kind;
  const wrong = errorLine();
  const states = el("span", { class: "states" });
  const bar = occupancyBar(kind.units);
  const facts = el("dl", { class: "metrics" });
  const [caption, columns, empty] = kind.holders;
  const holders = table(caption, columns, { empty });
  const waiting = table("Waiting executions, in order", kind.waiting, { empty: "No waiting executions." });
  const own = `${path}/${encodeURIComponent(name)}`;
  const pages = listPages({ parameters, path: own, reload: () => loading.now() });
  let known = null;
  const buttons = kind.changes.map(([needs, words, change]) => el("button",
    { type: "button", needs, on: { click: () => afterChange(change(known), "Changed", loading.now) } },
    words));
  for (const button of buttons) block(button, `The state of the ${subject} is loading.`);
  const loading = loader(async (mine) => {
    const query = { limit: PAGE, cursor: pages.cursor() };
    const [page, fields] = await Promise.all([
      ask("GET", `/${own}/queue`, { query, signal: mine }), kind.read?.(name, mine),
    ]);
    known = { ...fields, ...page, name };
    for (const button of buttons) block(button, null);
    text(buttons[0], known.paused ? "Resume" : "Pause");
    setChildren(states, ...kind.statesOf(known));
    bar.update(known.held, known.capacity);
    setChildren(facts, ...termsOf(kind.factsOf(known)));
    kind.update?.(known);
    holders.update(known.holders);
    waiting.update(known.items);
    pages.update(known.next_cursor);
  }, { every: 1000, signal, wrong });
  live.on("queues", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  main.append(
    el("p", { class: "trail" }, el("a", { href: `#/${path}` }, kind.title)),
    el("div", { class: "head" }, el("h1", {}, name, states), el("div", { class: "buttons" }, buttons)),
    wrong, el("div", { class: "panel" }, bar.node, facts),
    el("section", {}, el("h2", {}, "Holders"), holders.node),
    el("section", {}, el("h2", {}, "Waiting"), kind.hint, waiting.node, pages.node),
    ...(kind.last ? [kind.last] : []), auditLogOf({ subject_kind: subject, subject: name }, signal));
  loading.now();
}
