// Lists of the API: pages, filters and search in the address, and reloads.

import { button, el, text } from "./dom.js";
import { count, localTime } from "./format.js";
import { ask, queryOf } from "./api.js";
import { errorLine } from "./parts.js";
import { block } from "./permissions.js";
import { isAbort, Problem } from "./problem.js";

const FIRST = "This is the first page.";
const PAGE = 50;

/**
 * A list that is shown by `table`: its table, errors and pages, loaded again after an outage and, while
 * `follows()`, when something happened. `search()` returns the conditions that the address keeps, `query()`
 * those of the request, or null: they are wrong. `loaded(page)` is called for each page, `failed()` for each
 * error.
 */
export function list({ parameters }, { live, signal }, { path, table: shown, size = PAGE, every = 5000,
  search = () => ({}), query = search, follows = () => false, loaded = () => {}, failed }) {
  const wrong = errorLine();
  const pages = listPages({ parameters, path, search, reload: () => loading.now() });
  const loading = loader(async (mine) => {
    const asked = query();
    if (asked === null) return;
    const page = await ask("GET", `/${path}`,
      { query: { ...asked, limit: size, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
    loaded(page, asked);
  }, { every, signal, wrong, failed });
  live.on("opening", loading.soon, signal);
  live.on("overview", () => follows() && loading.soon(), signal);
  return { ...loading, wrong, pages, nodes: [shown.node, pages.node] };
}

/**
 * Buttons for the pages of a list with cursors. `go(cursor, before)` loads a page; `before` are the cursors
 * of those before it, "" the first. A list that is opened at the page `here` by its address alone knows none:
 * it goes back to the first page.
 */
export function pager(go, { here = "", before: known = [] } = {}) {
  const before = [...known];
  let following = null;
  const words = el("span", { class: "pages" });
  // Until the page is loaded, the next one is not known.
  const leave = (cursor) => {
    block(on, "The page is loading.");
    block(back, cursor === "" ? FIRST : null);
    go((here = cursor), before);
  };
  const back = button("Previous", () => leave(before.pop() ?? ""));
  const on = button("Next", () => { before.push(here); leave(following); });
  const node = el("nav", { class: "pager", "aria-label": "Pages", hidden: true }, back, words, on);
  return {
    node,
    isFirst: () => here === "",
    reset() {
      before.length = 0;
      here = "";
    },
    /** `total` is the number of pages, if it is known. */
    update(next, total = null) {
      following = next;
      const isAlone = here !== "" && before.length === 0;
      block(back, here === "" ? FIRST : null);
      text(back, isAlone ? "First page" : "Previous");
      block(on, next === null ? "This is the last page." : null);
      node.hidden = here === "" && next === null;
      text(words, isAlone ? "" : `Page ${before.length + 1}${total ? ` of ${count(total)}` : ""}`);
    },
  };
}

/**
 * The pages of a list whose search and page are kept in the address `#/path?search&cursor`, so that back,
 * forward, reload and a copied link work. `search()` returns the conditions by name, `reload()` loads the
 * page of `cursor()`.
 */
export function listPages({ parameters, path, search = () => ({}), reload }) {
  let cursor = parameters.get("cursor");
  const keep = (before, write = "pushState") => {
    const address = `#/${path}${queryOf({ ...search(), cursor })}`;
    if (address !== location.hash) history[write]({ before }, "", address);
  };
  const pages = pager((next, before) => {
    cursor = next;
    keep(before);
    reload();
  }, { here: cursor ?? "", before: history.state?.before });
  const first = (write) => {
    cursor = null;
    pages.reset();
    keep([], write);
    return reload();
  };
  return {
    ...pages,
    cursor: () => cursor,
    /** The search has changed: load its first page. */
    changed: () => first("pushState"),
    /** The same, without an entry of its own in the browser's history. */
    refined: () => first("replaceState"),
  };
}

/**
 * `now()` loads immediately and aborts a running load; `soon()` loads at the earliest `every` milliseconds
 * after the last start, and not while the page is hidden. `load(signal)` does it. `wrong` shows an error
 * until the next success; `failed` is called then.
 */
export function loader(load, { every, signal, wrong, failed = () => {} }) {
  let loading = null;
  let wanted = false;
  let timer = null;
  let asked = -Infinity;
  async function now() {
    clearTimeout(timer);
    timer = null;
    loading?.abort();
    const mine = (loading = new AbortController());
    wanted = false;
    asked = performance.now();
    try {
      await load(AbortSignal.any([signal, mine.signal]));
      text(wrong, "");
    } catch (error) {
      if (error instanceof Problem) {
        text(wrong, error.message);
        failed();
      } else if (!isAbort(error)) throw error;
    } finally {
      if (loading === mine) {
        loading = null;
        if (wanted) soon();
      }
    }
  }
  function soon() {
    if (signal.aborted) return;
    if (loading || document.hidden) wanted = true;
    else timer ??= setTimeout(now, Math.max(0, asked + every - performance.now()));
  }
  document.addEventListener("visibilitychange", () => wanted && soon(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return { now, soon };
}

/** Load again and again while `isWanted()`: there is no event for what is shown. */
export function polled(loading, every, signal, isWanted) {
  const polling = setInterval(() => isWanted() && loading.soon(), every);
  signal.addEventListener("abort", () => clearInterval(polling));
}

/** A group of checkboxes by value, of which those in `chosen` are checked. */
export function choices(legend, values, chosen) {
  const node = el("fieldset", { class: "choices" }, el("legend", {}, legend), values.map((value) =>
    el("label", {}, el("input", { type: "checkbox", value, checked: chosen.includes(value) }), value)));
  const boxes = [...node.querySelectorAll("input")];
  return {
    node,
    chosen: () => boxes.filter((box) => box.checked).map((box) => box.value),
    choose: (wanted) => boxes.forEach((box) => { box.checked = wanted.includes(box.value); }),
  };
}

/**
 * The fields by which a list is filtered, filled from the address. `fields` are [name, label, kind, example];
 * a kind is the type of an input, or the [value, label] pairs to choose from. `more` stands below them.
 */
export function filterForm(fields, parameters, { more = null, isOpen = false } = {}) {
  const open = isOpen || fields.some(([name]) => parameters.get(name));
  const node = el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } },
    el("details", { open }, el("summary", {}, "Filters"),
      el("div", { class: "fields" }, fields.map((each) => fieldOf(each, parameters.get(each[0]) ?? ""))),
      more));
  return {
    node,
    /** The filled conditions by name. */
    values: () => Object.fromEntries(fields.map(([name, , kind]) => {
      const value = node.elements[name].value.trim();
      return [name, kind === "datetime-local" && value ? new Date(value).toISOString() : value];
    }).filter(([, value]) => value)),
  };
}

function fieldOf([name, label, kind, example], given) {
  const id = `filter-${name}`;
  const isInstant = kind === "datetime-local";
  const control = Array.isArray(kind)
    ? el("select", { id, name },
      kind.map(([value, words]) => el("option", { value, selected: value === given }, words)))
    : el("input", { type: kind, id, name, placeholder: example, autocomplete: "off",
      value: isInstant ? localTime(given) : given, step: isInstant ? 1 : null });
  return el("div", { class: "field" }, el("label", { for: id }, label), control);
}
