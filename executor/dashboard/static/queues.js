// The screen of all queues, grouped by action: keys are folded inside, and idle actions below. The executor
// groups, sorts, searches and paginates; events update the rows of a page.

import { button, el, text } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { ask } from "./api.js";
import { afterChange, badge, elapsed, errorLine, failuresOf, head, keyOf, none, occupancyOfAll, queueLink,
  slotsInUse, slotsOf, waitOf } from "./parts.js";
import { sparkline } from "./chart.js";
import { changeLimitOf, changePause, limitRoute } from "./changes.js";
import { editAction } from "./edit_action.js";
import { listPages, loader, pager } from "./list.js";
import { menu } from "./menu.js";
import { submitExecution } from "./submit.js";
import { table } from "./table.js";

const PAGE = 50;
const KEYS_PAGE = 20;
/** A search that names keys opens the groups that have them, if there are so few. */
const OPENED_BY_SEARCH_MAX = 5;
const TYPING_MILLISECONDS = 250;

export function show(main, address, context) {
  const { parameters } = address;
  const { live, signal } = context;
  const query = { search: parameters.get("search") ?? "", sort: parameters.get("sort") ?? "waiting" };
  const words = el("p", { class: "said", role: "status" });
  const wrong = errorLine();
  const search = el("input", { type: "search", id: "search", value: query.search, autocomplete: "off",
    spellcheck: "false" });
  const keys = openKeys(query, () => loading.now());
  const columns = columnsOf(keys, (act, queue, message) => afterChange(act(queue), message, reload));
  const sorting = {
    ascending: ["name", "oldest"],
    chosen: () => query.sort,
    choose(order) {
      query.sort = order;
      for (const each of [shown, idle.table]) each.head();
      idle.reset();
      pages.refined();
    },
  };
  const shown = table("Queues by action", columns, { empty: "Nothing waits or runs.", sorting,
    keyOf: nameOfRow });
  const idle = idleActions(query, columns, sorting, context);
  const pages = listPages({ parameters, path: "queues", search: () => query, reload: () => loading.now() });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/queues",
      { query: { ...query, group: "action", idle: false, limit: PAGE, cursor: pages.cursor() },
        signal: mine });
    shown.update(await keys.inside(page.items, mine));
    pages.update(page.next_cursor, Math.ceil(page.total / PAGE));
    idle.update(page.idle, page.total === 0);
    text(words, counted(page.total, "action") + (page.truncated ? " of the busiest queues" : "")
      + ` with work or failures, ${count(page.idle)} idle`);
  }, { every: 2000, signal, wrong });
  const reload = () => Promise.all([loading.now(), idle.load()]);
  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => {
      query.search = search.value.trim();
      idle.reset();
      pages.refined();
    }, TYPING_MILLISECONDS);
  });
  signal.addEventListener("abort", () => clearTimeout(typed));
  live.on("queues", ({ items }) => {
    shown.patch(items);
    loading.soon();
  }, signal);
  for (const name of ["opening", "overview"]) live.on(name, loading.soon, signal);
  main.append(
    head("Queues", el("div", { class: "field search" },
      el("label", { for: "search" }, "Search by action or key"), search)),
    wrong, words, shown.node, pages.node, idle.node);
  loading.now();
}

/** What is in a row: a group, which may stand for its only queue; a queue of an open group; or its pages. */
function nameOfRow({ action_ref: ref, concurrency_key: key, keys, turns }) {
  return JSON.stringify(turns ? [ref, "", "pages"] : keys ? [ref] : [ref, key]);
}

/** The groups that are open, each with the page of its queues that is shown. */
function openKeys(query, reload) {
  const open = new Map();
  const ofSearch = () => query.search.toLowerCase();
  async function rowsOf(group, signal) {
    const { action_ref: ref } = group;
    const { cursors, idle } = open.get(ref) ?? { cursors: [null], idle: false };
    const search = ref.toLowerCase().includes(ofSearch()) ? null : query.search;
    const page = await ask("GET", "/queues", { query: { action_ref: ref, search, sort: query.sort,
      idle: idle || search ? null : false, limit: KEYS_PAGE, cursor: cursors.at(-1) }, signal });
    const turns = { first: (cursors.length - 1) * KEYS_PAGE + 1, total: page.total, next: page.next_cursor,
      folded: idle || search ? 0 : group.idle_keys };
    return [...page.items.map((each) => ({ ...each, is_inside: true })),
      ...(turns.total > KEYS_PAGE || turns.folded ? [{ action_ref: ref, turns }] : [])];
  }
  return {
    isOpen: (ref) => open.has(ref),
    toggle(ref) {
      if (!open.delete(ref)) open.set(ref, { cursors: [null], idle: false });
      return reload();
    },
    /** Show another page of the keys of a group: the one behind a cursor, or null: the one before. */
    turn(ref, next) {
      const { cursors } = open.get(ref) ?? open.set(ref, { cursors: [null], idle: false }).get(ref);
      if (next === null) cursors.pop();
      else cursors.push(next);
      return reload();
    },
    unfold(ref) {
      open.set(ref, { cursors: [null], idle: true });
      return reload();
    },
    /** Return the rows of groups, each open one followed by its queues. */
    async inside(groups, signal) {
      const bySearch = ({ action_ref: ref }) => groups.length <= OPENED_BY_SEARCH_MAX
        && !ref.toLowerCase().includes(ofSearch());
      return (await Promise.all(groups.map(async (group) => {
        const isOpen = group.keys > 0 && (open.has(group.action_ref) || bySearch(group));
        return [{ ...group, is_open: isOpen }, ...(isOpen ? await rowsOf(group, signal) : [])];
      }))).flat();
    },
  };
}

/** The idle actions, which are loaded while they are unfolded. */
function idleActions(query, columns, sorting, { live, signal }) {
  const wrong = errorLine();
  const summary = el("summary");
  const shown = table("Idle actions", columns, { empty: "No idle actions.", sorting, keyOf: nameOfRow });
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/queues",
      { query: { ...query, group: "action", idle: true, limit: PAGE, cursor }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor, Math.ceil(page.total / PAGE));
  }, { every: 5000, signal, wrong });
  const node = el("details", {}, summary, wrong, shown.node, pages.node);
  const load = () => node.open && loading.now();
  node.addEventListener("toggle", load);
  for (const name of ["opening", "overview"]) live.on(name, () => node.open && loading.soon(), signal);
  let isFirst = true;
  return {
    node,
    table: shown,
    load,
    reset() {
      cursor = null;
      pages.reset();
      isFirst = true;
      load();
    },
    /** Say how many there are; they are unfolded if a search finds nothing else. */
    update(total, isAll) {
      node.hidden = total === 0;
      text(summary, counted(total, "idle action"));
      if (isFirst && isAll) node.open = true;
      isFirst = false;
    },
  };
}

function columnsOf(keys, change) {
  const ofQueue = (show) => (row) => (row.turns ? null : show(row));
  return [
    ["Action", "row name", (row) => (row.turns ? turnsOf(row, keys) : nameOf(row, keys)), "name"],
    ["Slots", "", ofQueue((each) => (each.keys ? occupancyOfAll(slotsInUse(each), "in use")
      : slotsOf(each))), "occupancy"],
    ["Waiting", "number", ofQueue((each) => count(each.queue_length)), "waiting"],
    ["Why", "", ofQueue(({ why: [most] }) => (most ? el("span", { class: "reason" }, waitOf(most))
      : none("–")))],
    ["Oldest", "number", ofQueue((each) => elapsed(each.oldest_enqueued_at)), "oldest"],
    ["Failed", "number", ofQueue((each) => (each.is_inside ? null : failuresOf(each))), "failures"],
    ["Admitted /s", "number", ofQueue((each) => rate(each.enqueued_per_second))],
    ["Ended /s", "number", ofQueue((each) => rate(each.completed_per_second)), "rate"],
    ["Last 5 minutes", "", ofQueue((each) => sparkline(each.depths))],
    ["Actions", "does", ofQueue((each) => menuOf(each, change))],
  ];
}

function nameOf(row, keys) {
  const { action_ref: ref, concurrency_key: key } = row;
  if (row.is_inside)
    return el("span", { class: "inside" },
      el("a", { href: queueLink(row) }, key === null ? "no key" : keyOf(key)));
  const states = [row.paused && badge("paused"), !row.served && badge("no_worker")];
  return [
    row.keys > 0 && button("", () => keys.toggle(ref),
      { class: "fold", "aria-expanded": String(row.is_open ?? false), "aria-label": `Keys of ${ref}` }),
    el("a", { href: queueLink(row) }, ref), el("span", { class: "states" }, states),
    row.keys > 0 && el("span", { class: "keys" }, counted(row.keys, "key"))];
}

function turnsOf({ action_ref: ref, turns }, keys) {
  const { first, total, next, folded } = turns;
  const last = Math.min(first + KEYS_PAGE - 1, total);
  return el("span", { class: "inside turns" },
    total > 0 && `${count(first)} to ${count(last)} of ${counted(total, "key")} `,
    first > 1 && button("Previous", () => keys.turn(ref, null), { "aria-label": `Previous keys of ${ref}` }),
    next && button("Next", () => keys.turn(ref, next), { "aria-label": `Next keys of ${ref}` }),
    folded > 0 && button(`Show ${counted(folded, "idle key")}`, () => keys.unfold(ref)));
}

function menuOf(queue, change) {
  const { action_ref: ref, concurrency_key: key, paused, keys } = queue;
  const verb = paused ? "Resume" : "Pause";
  const name = key === null ? ref : `key ${key} of ${ref}`;
  const whole = key === null && !keys ? ref : `all keys of ${ref}`;
  return menu(`Actions for ${name}`, [
    !queue.is_inside && ["Submit…", () => submitExecution(ref), { needs: "POST /executions" }],
    [`${verb}${whole === ref ? "" : " all keys"}…`,
      () => change(changePause, queue, `${ref} ${paused ? "resumed" : "paused"}`),
      { needs: "POST /actions/{ref}/pause", "aria-label": `${verb} ${whole}` }],
    ["Limit…", () => change(changeLimitOf, queue, `Limit of ${name} changed`),
      { needs: limitRoute(queue), "aria-label": `Limit of ${name}` }],
    !queue.is_inside && ["Edit…", () => change(editAction, queue, `${ref} changed`),
      { needs: "PATCH /actions/{ref}", "aria-label": `Edit ${ref}` }],
    el("a", { class: "button", href: `#/executions?action_ref=${encodeURIComponent(ref)}${
      key === null ? "" : `&concurrency_key=${encodeURIComponent(key)}`}` }, "Executions"),
  ]);
}
