// The table of every screen.

import { button, el, render } from "./dom.js";

const ROWS_PER_STEP = 10;

/**
 * A table with a caption for screen readers. `columns` are [heading, class, render(item), order]; the class
 * `row` marks the header of a row, and a column with an order can be sorted by it: `sorting` is
 * {chosen(), choose(order), ascending}. Rows are made a few at a time, so that the page answers between them;
 * a row is drawn again when its item has changed.
 */
export function table(caption, columns, { empty = "No entries.", keyOf = (each) => each.id, sorting } = {}) {
  const headings = el("tr");
  const body = el("tbody");
  const nothing = el("p", { class: "empty", hidden: true }, empty);
  const whole = el("table", {}, el("caption", { class: "spoken" }, caption), el("thead", {}, headings), body);
  let rows = new Map();
  let rest = null;

  function draw(row, item) {
    const drawn = JSON.stringify(item);
    if (row.drawn === drawn) return;
    Object.assign(row, { drawn, item });
    render(row.node, columns.map((column) => cellOf(column, item)));
  }
  function fill(items) {
    const now = new Map();
    let made = 0;
    for (const item of items) {
      const key = keyOf(item);
      if (!rows.has(key) && ++made > ROWS_PER_STEP) continue;
      const row = rows.get(key) ?? { node: el("tr") };
      draw(row, item);
      now.set(key, row);
    }
    for (const [key, { node }] of rows) if (!now.has(key)) node.remove();
    let next = body.firstElementChild;
    for (const { node } of now.values()) {
      if (node === next) next = next.nextElementSibling;
      else body.insertBefore(node, next);
    }
    rows = now;
    if (made > ROWS_PER_STEP) rest = setTimeout(() => body.isConnected && fill(items));
  }
  const head = () => render(headings, columns.map((column) => headingOf(column, sorting)));
  head();
  return {
    node: el("div", { class: "table" }, whole, nothing),
    /** Mark the order that is chosen. */
    head,
    update(items) {
      clearTimeout(rest);
      fill(items);
      whole.hidden = items.length === 0;
      nothing.hidden = items.length > 0;
    },
    /** Change fields of the items that are shown. */
    patch(items) {
      for (const item of items) {
        const row = rows.get(keyOf(item));
        if (row) draw(row, { ...row.item, ...item });
      }
    },
  };
}

function headingOf([name, kind, , order], sorting) {
  const isChosen = order && order === sorting.chosen();
  return el("th", {
    scope: "col", class: kind.replace("row", "").trim() || null,
    "aria-sort": isChosen && (sorting.ascending.includes(order) ? "ascending" : "descending"),
  }, order ? button(name, () => sorting.choose(order), { class: "sort" }) : name);
}

/** A cell with its heading, which small screens show because there each row is a card. */
function cellOf([heading, kind, show], item) {
  if (kind.startsWith("row"))
    return el("th", { scope: "row", class: kind.slice(4) || null }, show(item));
  return el("td", { "data-label": heading === "Actions" ? "" : heading, class: kind || null }, show(item));
}
