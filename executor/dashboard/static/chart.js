// The length of a queue over the last five minutes: as a line in a list, and as a chart with axes, of which
// each value is read under the pointer or by the arrow keys.

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

/** A chart whose `update(depths)` takes the lengths. */
export function depthChart() {
  const node = el("figure", { class: "chart", hidden: true });
  const [width, height] = [600, 100];
  let depths = [];
  let selected = null;

  function select(index) {
    selected = index === null ? null : Math.max(0, Math.min(depths.length - 1, index));
    draw();
  }
  function point({ clientX, currentTarget }) {
    const box = currentTarget.getBoundingClientRect();
    select(Math.round(((clientX - box.left) / box.width) * (depths.length - 1)));
  }
  function step(event) {
    const by = STEPS[event.key];
    if (by === undefined) return;
    event.preventDefault();
    select((selected ?? depths.length - 1) + by);
  }
  function wordsAt(index) {
    const ago = (depths.length - 1 - index) * SPAN_SECONDS;
    const words = depths[index] === null ? "not recorded" : counted(depths[index], "execution");
    return `${words}, ${ago ? `${duration(ago)} ago` : "now"}`;
  }
  function draw() {
    const last = Math.max(0, depths.length - 1);
    const index = Math.min(selected ?? last, last);
    const most = Math.max(2, ...depths);
    // An even maximum, so that the middle is a whole number.
    const top = most + (most % 2);
    const at = (width * index) / Math.max(1, last);
    const leave = () => select(null);
    render(node,
      el("figcaption", {}, el("span", {}, "Waiting executions"),
        el("output", {}, selected === null ? "" : wordsAt(index))),
      el("div", { class: "values", "aria-hidden": "true" },
        [top, top / 2, 0].map((value) => el("span", {}, count(value)))),
      el("div", {
        class: "plot", tabindex: 0, role: "slider", "aria-label": "Waiting over the last minutes, by time",
        "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": index, "aria-valuetext": wordsAt(index),
        on: { pointermove: point, pointerdown: point, pointerleave: leave, blur: leave, keydown: step,
          focus: () => select(last) },
      }, svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "middle", d: `M0 ${height / 2}H${width}` }),
        linesOf(depths, top, width, height, 0),
        selected !== null && svg("path", { class: "mark", d: `M${at.toFixed(1)} 0V${height}` }))),
      el("div", { class: "times", "aria-hidden": "true" },
        el("span", {}, `${duration(last * SPAN_SECONDS)} ago`), el("span", {}, "now")));
  }
  return {
    node,
    /** Without a known value, as just after the first viewer came, axes alone would look like no work. */
    update(lengths) {
      node.hidden = !lengths?.some((depth) => depth !== null);
      if (node.hidden) return;
      depths = lengths;
      draw();
    },
  };
}
