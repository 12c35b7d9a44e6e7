// What the screens of resources and pools have in common: the list of all, and one of them with its queue.

import { button, el, render } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { list, listPages, loader } from "./list.js";
import { actionOf, afterChange, errorLine, executionLink, head, occupancy, section, termsOf, trail }
  from "./parts.js";
import { table } from "./table.js";

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
export function showList(main, address, context, { path, title, columns, empty }) {
  const shown = table(`${title} by name`, columns, { empty, keyOf: (each) => each.name });
  const all = list(address, context, { path, table: shown, follows: () => true });
  main.append(head(title), all.wrong, ...all.nodes);
  all.now();
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
  const buttons = el("div", { class: "buttons" });
  const bar = el("div");
  const facts = el("dl", { class: "metrics" });
  const [caption, columns, empty] = kind.holders;
  const holders = table(caption, columns, { empty });
  const waiting = table("Waiting executions, in order", kind.waiting, { empty: "No waiting executions." });
  const own = `${path}/${encodeURIComponent(name)}`;
  const pages = listPages({ parameters, path: own, reload: () => loading.now() });
  const buttonsOf = (gate) => kind.changes.map(([needs, words, change], index) => button(
    index === 0 && gate?.paused ? "Resume" : words,
    () => afterChange(change(gate), "Changed", loading.now),
    { needs, blocked: !gate && `The state of the ${subject} is loading.` }));
  const loading = loader(async (mine) => {
    const query = { limit: PAGE, cursor: pages.cursor() };
    const [page, fields] = await Promise.all([
      ask("GET", `/${own}/queue`, { query, signal: mine }), kind.read?.(name, mine),
    ]);
    const gate = { ...fields, ...page, name };
    render(buttons, buttonsOf(gate));
    render(states, kind.statesOf(gate));
    render(bar, occupancy(gate.held, gate.capacity, kind.units));
    render(facts, termsOf(kind.factsOf(gate)));
    kind.update?.(gate);
    holders.update(gate.holders);
    waiting.update(gate.items);
    pages.update(gate.next_cursor);
  }, { every: 1000, signal, wrong });
  live.on("queues", loading.soon, signal);
  live.on("opening", loading.soon, signal);
  render(buttons, buttonsOf(null));
  main.append(
    trail(`#/${path}`, kind.title), head([name, states], buttons),
    wrong, el("div", { class: "panel" }, bar, facts), section("Holders", holders.node),
    section("Waiting", kind.hint, waiting.node, pages.node),
    ...(kind.last ? [kind.last] : []), auditLogOf({ subject_kind: subject, subject: name }, signal));
  loading.now();
}
