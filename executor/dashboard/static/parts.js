// Parts of several screens: badges, bars, sparklines, tables, pagers and timed reloads.

import { attribute, el, say, setChildren, svg, sync, text } from "./dom.js";
import { beside, clock, count, percent, short, since } from "./format.js";
import { isAbort, Problem, queryOf } from "./api.js";
import { block } from "./permissions.js";

const SHOWN = { beside, since };
const ROWS_PER_STEP = 10;
const FIRST = "This is the first page.";

/** Updates every element that shows an instant beside now. */
setInterval(() => {
  if (document.hidden) return;
  for (const node of document.querySelectorAll("time[data-shown]"))
    text(node, SHOWN[node.dataset.shown](node.dateTime));
}, 1000);

/** An instant beside now, like 3 m ago; the tooltip shows its date and time. */
export function instant(at) {
  return timeOf(at, "beside");
}

/** How long ago an instant was, like 3 m; the tooltip shows its date and time. */
export function elapsed(at) {
  return timeOf(at, "since");
}

function timeOf(at, shown) {
  if (!at) return none("–");
  return el("time", { datetime: at, title: clock(at), "data-shown": shown }, SHOWN[shown](at));
}

/** What stands where there is no value. */
export function none(words) {
  return el("span", { class: "none" }, words);
}

/** The entries of a list of terms: [name, value] pairs; what is false is left out. */
export function termsOf(pairs) {
  return pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

export function badge(status) {
  return el("span", { class: `badge ${status}` }, status.replace("_", " "));
}

/** The status of a listed execution, and whether it has been asked to stop. */
export function statusOf({ status, stopping }) {
  return stopping ? el("div", {}, badge(status), " ", badge("stopping")) : badge(status);
}

/** A bar of the slots in use, with the numbers as text. */
export function occupancyBar(unit = "") {
  const fill = svg("rect", { class: "fill", height: 8 });
  const bar = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none",
    "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 8 }), fill);
  const words = el("span", { class: "of" });
  const node = el("div", { class: "occupancy" }, words, bar);
  return {
    node,
    update(held, limit, suffix) {
      const share = limit === null ? (held ? 100 : 0) : limit ? Math.min(100, (100 * held) / limit) : 0;
      attribute(fill, "width", share);
      attribute(bar, "class", `bar${limit === null ? " open" : share >= 100 ? " full" : ""}`);
      const of = unit && ` ${unit}`;
      text(words, suffix ? `${count(held)} ${suffix}` : limit === null ? `${count(held)}${of}, no limit`
        : `${count(held)} of ${count(limit)}${of}`);
    },
  };
}

/** The queue length over the last minutes. */
export function sparkline() {
  const [width, height] = [120, 28];
  const line = svg("path", { class: "line" });
  const area = svg("path", { class: "area" });
  const title = svg("title");
  const picture = svg("svg", {
    class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
  }, title, area, line);
  const scale = el("span", { class: "scale", "aria-hidden": "true" });
  return {
    node: el("div", { class: "sparkline" }, picture, scale),
    update(depths) {
      const seen = depths.filter((depth) => depth !== null);
      const top = Math.max(1, ...seen);
      const step = width / Math.max(1, depths.length - 1);
      const points = depths
        .map((depth, index) => [index * step, height - 2 - ((depth ?? 0) / top) * (height - 4), depth])
        .filter(([, , depth]) => depth !== null);
      // A single value has no line: it is drawn as long as the span that it stands for.
      if (points.length === 1) points.unshift([points[0][0] - step, points[0][1]]);
      const drawn = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
        .join("");
      attribute(line, "d", drawn || null);
      attribute(area, "d", points.length > 1
        ? `${drawn}L${width} ${height}L${points[0][0].toFixed(1)} ${height}Z` : null);
      const most = Math.max(...seen);
      const words = seen.length
        ? `Waiting executions over the last minutes: from ${count(seen[0])} to ${count(seen.at(-1))}, `
          + `maximum ${count(most)}`
        : "No data yet";
      attribute(picture, "aria-label", words);
      text(title, words);
      text(scale, seen.length ? `max ${short(most)}` : "no data yet");
      picture.toggleAttribute("hidden", seen.length === 0);
    },
  };
}

/**
 * Failures of an action: their number and share, and the latest one as a tooltip. `failures` may be null: not
 * read.
 */
export function failuresOf({ action_ref: ref, failures }) {
  if (!failures) return none("–");
  if (!failures.failed) return el("span", {}, "0");
  const { last } = failures;
  const error = last && [last.type, last.message].filter(Boolean).join(": ");
  const title = last && `Last: #${last.execution_id} ${last.status}, ${clock(last.at)}. ${error}`;
  return el("a", { class: "failures", href: failedLink(ref), title },
    `${count(failures.failed)} (${percent(failures.share)})`);
}

/** The executions of an action that failed. */
export function failedLink(ref) {
  return `#/executions?action_ref=${encodeURIComponent(ref)}&status=failed,timeout,abandoned`;
}

export function executionLink(id) {
  return el("a", { href: `#/executions/${id}` }, `#${id}`);
}

/** The page of a worker; `name` is its id or its name. */
export function workerLink(name) {
  return `#/workers/${encodeURIComponent(name)}`;
}

/** The first characters of a worker id, with a link; the tooltip shows all of it. */
export function shortId(id) {
  return id ? el("a", { class: "id", href: workerLink(id), title: id }, id.slice(0, 8)) : none("–");
}

/**
 * A table with a caption for screen readers. `columns` are [heading, class, render(item)]; the class `row`
 * marks the header of a row. `make` replaces the rows made of them; then a column may be a header cell. Rows
 * are made a few at a time, so that the page answers between them.
 */
export function table(caption, columns, { empty = "No entries.", keyOf = (each) => each.id,
  make = rowOf(columns) } = {}) {
  const head = columns.map((column) => (column instanceof Node ? column
    : el("th", { scope: "col", class: column[1].replace("row", "").trim() }, column[0])));
  const body = el("tbody");
  const nothing = el("p", { class: "empty", hidden: true }, empty);
  let rest = null;
  function fill(items, isContinued) {
    if (sync(body, items, keyOf, make, { madeMax: ROWS_PER_STEP, isContinued })) {
      rest = setTimeout(() => body.isConnected && fill(items, true));
    }
  }
  const whole = el("table", {}, el("caption", { class: "spoken" }, caption),
    el("thead", {}, el("tr", {}, head)), body);
  return {
    node: el("div", { class: "table" }, whole, nothing),
    update(items) {
      clearTimeout(rest);
      fill(items, false);
      whole.hidden = items.length === 0;
      nothing.hidden = items.length > 0;
    },
  };
}

/**
 * Buttons of which one is pressed; `choices` are [name, value] pairs, `choose(value)` is called for a click.
 */
export function tabs(label, choices, choose) {
  const buttons = choices.map(([name, value]) =>
    el("button", { type: "button", on: { click: () => choose(value) } }, name));
  return {
    node: el("div", { class: "tabs", role: "group", "aria-label": label }, buttons),
    /** Press those of which `isChosen(value)` holds. */
    update: (isChosen) => choices.forEach(([, value], index) =>
      attribute(buttons[index], "aria-pressed", String(isChosen(value)))),
  };
}

/** A cell with its heading, which small screens show because there each row is a card. */
export function cell(label, attributes, ...content) {
  return el("td", { "data-label": label, ...attributes }, ...content);
}

/** Rows that are rebuilt when their item has changed. */
function rowOf(columns) {
  const build = (item) => columns.map(([heading, kind, render]) => (kind.startsWith("row")
    ? el("th", { scope: "row", class: kind.slice(4) || null }, render(item))
    : cell(heading === "Actions" ? "" : heading, { class: kind || null }, render(item))));
  return () => {
    const node = el("tr");
    let known = null;
    return {
      node,
      update(item) {
        const now = JSON.stringify(item);
        if (now === known) return;
        known = now;
        setChildren(node, ...build(item));
      },
    };
  };
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
  const back = el("button", { type: "button", on: { click: () => leave(before.pop() ?? "") } }, "Previous");
  const on = el("button", { type: "button", on: { click: () => { before.push(here); leave(following); } } },
    "Next");
  const node = el("nav", { class: "pager", "aria-label": "Pages", hidden: true }, back, words, on);
  return {
    node,
    isFirst: () => here === "",
    page: () => before.length,
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

/** After a change that was confirmed and made, say so and load what shows it. */
export async function afterChange(change, message, load) {
  if (await change) {
    say(message);
    load();
  }
}

/** The line that shows errors. */
export function errorLine() {
  return el("p", { class: "wrong", role: "alert" });
}

/**
 * The line that shows the result of a change; screen readers hear it. A result is {text, isComplete}, or
 * null if nothing was changed. `changed()` reloads the list after a change, `describe()` updates the buttons.
 */
export function resultLine({ changed, describe = () => {} }) {
  const node = el("p", { class: "result", role: "status" });
  let isRunning = false;
  function update({ text: words, isComplete }) {
    attribute(node, "class", isComplete ? "result" : "result wrong");
    text(node, words);
  }
  async function report(done) {
    if (!done) return;
    update(done);
    await changed();
  }
  return {
    node,
    report,
    isRunning: () => isRunning,
    /** Make a change, one at a time, and report its result, or why it failed. */
    async run(change) {
      if (isRunning) return;
      isRunning = true;
      describe();
      try {
        await report(await change());
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        update({ text: error.message, isComplete: false });
      } finally {
        isRunning = false;
        describe();
      }
    },
  };
}
