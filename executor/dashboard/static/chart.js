// The length of a queue over the last five minutes: axes, and each value under the pointer or by the arrow
// keys.

import { attribute, el, svg, text } from "./dom.js";
import { count, counted, duration } from "./format.js";

const SPAN_SECONDS = 5;
const [WIDTH, HEIGHT] = [600, 100];
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -Infinity, End: Infinity };

/**
 * A chart whose `update(depths)` takes the lengths at the ends of equal spans, the oldest first; null:
 * unknown.
 */
export function depthChart() {
  const line = svg("path", { class: "line" });
  const area = svg("path", { class: "area" });
  const middle = svg("path", { class: "middle", d: `M0 ${HEIGHT / 2}H${WIDTH}` });
  const mark = el("span", { class: "mark", hidden: true });
  const read = el("output", {});
  const [top, half] = [el("span"), el("span")];
  const from = el("span");
  const plot = el("div", {
    class: "plot", tabindex: 0, role: "slider", "aria-label": "Waiting over the last minutes, by time",
    "aria-valuemin": 0,
    on: { pointermove: point, pointerdown: point, pointerleave: leave, blur: leave,
      focus: () => select(depths.length - 1), keydown: step },
  }, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    middle, area, line), mark);
  const node = el("figure", { class: "chart", hidden: true },
    el("figcaption", {}, el("span", {}, "Waiting executions"), read),
    el("div", { class: "values", "aria-hidden": "true" }, top, half, el("span", {}, "0")),
    plot,
    el("div", { class: "times", "aria-hidden": "true" }, from, el("span", {}, "now")));
  let depths = [];
  let selected = null;

  function point(event) {
    const box = plot.getBoundingClientRect();
    select(Math.round(((event.clientX - box.left) / box.width) * (depths.length - 1)));
  }
  function leave() {
    selected = null;
    show();
  }
  function step(event) {
    const by = STEPS[event.key];
    if (by === undefined) return;
    event.preventDefault();
    select((selected ?? depths.length - 1) + by);
  }
  function select(index) {
    selected = Math.max(0, Math.min(depths.length - 1, index));
    show();
  }
  function wordsAt(index) {
    const ago = (depths.length - 1 - index) * SPAN_SECONDS;
    const value = depths[index];
    const words = value === null || value === undefined ? "not recorded" : counted(value, "execution");
    return `${words}, ${ago ? `${duration(ago)} ago` : "now"}`;
  }
  function show() {
    const last = depths.length - 1;
    const index = Math.min(selected ?? last, last);
    mark.hidden = selected === null;
    mark.style.left = `${(100 * index) / Math.max(1, last)}%`;
    text(read, selected === null ? "" : wordsAt(index));
    attribute(plot, "aria-valuenow", Math.max(0, index));
    attribute(plot, "aria-valuetext", last < 0 ? "no data yet" : wordsAt(index));
  }
  return {
    node,
    update(now) {
      depths = now;
      // An even maximum, so that the middle is a whole number.
      const most = Math.max(2, ...now.map((depth) => depth ?? 0));
      const highest = most + (most % 2);
      const x = WIDTH / Math.max(1, now.length - 1);
      const points = now
        .map((depth, index) => [index * x, HEIGHT - ((depth ?? 0) / highest) * HEIGHT, depth])
        .filter(([, , depth]) => depth !== null);
      // A single value has no line: it is drawn as long as the span that it stands for.
      if (points.length === 1) points.unshift([points[0][0] - x, points[0][1]]);
      const drawn = points.map(([at, y], index) => `${index ? "L" : "M"}${at.toFixed(1)} ${y.toFixed(1)}`)
        .join("");
      attribute(line, "d", drawn || null);
      attribute(area, "d", points.length > 1 ? `${drawn}V${HEIGHT}H${points[0][0].toFixed(1)}Z` : null);
      attribute(plot, "aria-valuemax", Math.max(0, now.length - 1));
      text(top, count(highest));
      text(half, count(highest / 2));
      text(from, `${duration((now.length - 1) * SPAN_SECONDS)} ago`);
      show();
    },
  };
}
