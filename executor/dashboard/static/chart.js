// Values over time: as a line in a list, and as a chart with axes, of which each value is read under the
// pointer, by the arrow keys, or in a table.

import { el, render, svg } from "./dom.js";
import { count, counted, duration, short } from "./format.js";

const SPAN_SECONDS = 5;
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -Infinity, End: Infinity };

/** Values of equal spans, the oldest first, as a picture; null: unknown. `what` names them and the time. */
export function sparkline(depths, what = "Waiting executions over the last minutes") {
  const seen = depths.filter((depth) => depth !== null);
  if (seen.length === 0)
    return el("div", { class: "sparkline" }, el("span", { class: "scale" }, "no data yet"));
  const most = Math.max(...seen);
  const words = `${what}: from ${count(seen[0])} to ${count(seen.at(-1))}, `
    + `maximum ${count(most)}`;
  const [width, height] = [120, 28];
  return el("div", { class: "sparkline" },
    svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": words },
      svg("title", {}, words), linesOf(depths, Math.max(1, most), width, height, 2)),
    el("span", { class: "scale", "aria-hidden": "true" }, `max ${short(most)}`));
}

/** The line through the known values and the area below it, in a box whose top is the value `top`. */
function linesOf(depths, top, width, height, margin) {
  const step = width / Math.max(1, depths.length - 1);
  const points = depths
    .map((depth, index) => [index * step, height - margin - (depth / top) * (height - 2 * margin), depth])
    .filter(([, , depth]) => depth !== null);
  if (points.length === 0) return [];
  // A single value has no line: it is drawn as long as the span that it stands for.
  if (points.length === 1) points.unshift([points[0][0] - step, points[0][1]]);
  const line = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  return [
    svg("path", { class: "area", d: `${line}L${width} ${height}L${points[0][0].toFixed(1)} ${height}Z` }),
    svg("path", { class: "line", d: line }),
  ];
}

/** The line through the known values, with a gap where one is unknown. */
function lineOf(values, top, width, height, kind) {
  const step = width / Math.max(1, values.length - 1);
  const parts = values.map((value, index) => {
    if (value === null) return "";
    const at = `${(index * step).toFixed(1)} ${(height - (value / top) * height).toFixed(1)}`;
    return (values[index - 1] ?? null) === null ? `M${at}h.1` : `L${at}`;
  });
  return svg("path", { class: `line ${kind}`, d: parts.join("") });
}

/**
 * A chart of one or two lines: `series` are [name, kind] pairs, `format(value)` writes a value, and
 * `describe(value, name)` says what it is.
 * `update(values, times)` takes the values of each line, null: unknown, and the words of each time, the
 * oldest first. A chart without a known value is hidden: axes alone would look like no work.
 */
export function chart({ title, series, format = count,
  describe = (value, name) => `${name} ${written(value, format)}`, shows = (values) => values.flat().some((each) =>
  each !== null) }) {
  const node = el("figure", { class: "chart", hidden: true });
  const rows = el("details", { class: "values-table", on: { toggle: () => tabulate() } });
  const [width, height] = [600, 100];
  let [lines, times] = [[], []];
  let selected = null;

  const last = () => Math.max(0, times.length - 1);
  function select(index) {
    selected = index === null ? null : Math.max(0, Math.min(last(), index));
    draw();
  }
  function point({ clientX, currentTarget }) {
    const box = currentTarget.getBoundingClientRect();
    select(Math.round(((clientX - box.left) / box.width) * last()));
  }
  function step(event) {
    const by = STEPS[event.key];
    if (by === undefined) return;
    event.preventDefault();
    select((selected ?? last()) + by);
  }
  function wordsAt(index) {
    const values = series.map(([name], line) => describe(lines[line]?.[index] ?? null, name));
    return `${values.join(", ")}, ${times[index] ?? ""}`;
  }
  function tabulate() {
    const open = rows.open && times.map((time, index) => el("tr", {}, el("th", { scope: "row" }, time),
      lines.map((values, line) => el("td", { class: "number", "data-label": series[line][0] },
        written(values[index], format)))));
    render(rows, el("summary", {}, "Values"), open && el("table", {},
      el("caption", { class: "spoken" }, title),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Time"),
        series.map(([name]) => el("th", { scope: "col", class: "number" }, name)))),
      el("tbody", {}, open)));
  }
  function draw() {
    const index = Math.min(selected ?? last(), last());
    const most = Math.max(...lines.flat().map((value) => value ?? 0));
    // An even maximum, so that the middle is a whole number.
    const top = format === count ? Math.max(2, most + (most % 2)) : most || 1;
    const at = (width * index) / Math.max(1, last());
    const leave = () => select(null);
    const names = series.length > 1
      && series.map(([name, kind]) => el("span", { class: `name ${kind}` }, name));
    render(node,
      el("figcaption", {}, el("span", {}, el("strong", {}, title), names),
        el("output", {}, selected === null ? "" : wordsAt(index))),
      el("div", { class: "values", "aria-hidden": "true" },
        [top, top / 2, 0].map((value) => el("span", {}, value ? format(value) : "0"))),
      el("div", {
        class: "plot", tabindex: 0, role: "slider", "aria-label": `${title} over time`,
        "aria-valuemin": 0, "aria-valuemax": last(), "aria-valuenow": index, "aria-valuetext": wordsAt(index),
        on: { pointermove: point, pointerdown: point, pointerleave: leave, blur: leave, keydown: step,
          focus: () => select(last()) },
      }, svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "middle", d: `M0 ${height / 2}H${width}` }),
        lines.map((values, line) => lineOf(values, top, width, height, series[line][1])),
        selected !== null && svg("path", { class: "mark", d: `M${at.toFixed(1)} 0V${height}` }))),
      el("div", { class: "times", "aria-hidden": "true" },
        el("span", {}, times[0]), el("span", {}, times.at(-1))));
  }
  return {
    node: el("div", { class: "charted" }, node, rows),
    update(values, words) {
      const isShown = shows(values);
      node.hidden = rows.hidden = !isShown;
      if (!isShown) return;
      [lines, times] = [values, words];
      draw();
      tabulate();
    },
  };
}

function written(value, format) {
  return value === null ? "–" : format(value);
}

/** A chart of the length of a queue, whose `update(depths)` takes the lengths. */
export function depthChart() {
  const { node, update } = chart({ title: "Waiting executions", series: [["Waiting", "first"]],
    describe: (depth) => (depth === null ? "not recorded" : counted(depth, "execution")) });
  return {
    node,
    update(depths) {
      const words = (_, index) => {
        const ago = (depths.length - 1 - index) * SPAN_SECONDS;
        return ago ? `${duration(ago)} ago` : "now";
      };
      update([depths ?? []], (depths ?? []).map(words));
    },
  };
}
