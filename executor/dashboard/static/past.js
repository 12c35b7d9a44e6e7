// What executions did over time, as GET /history answers it: totals and charts, of all actions or of one.

import { el, render } from "./dom.js";
import { count, duration, percent, rate } from "./format.js";
import { chart } from "./chart.js";
import { termsOf } from "./parts.js";

const AT = new Intl.DateTimeFormat(undefined, { weekday: "short", hour: "numeric", minute: "2-digit" });
const FAILED = ["failed", "timeout", "abandoned"];
const ENDED = ["completed", "cancelled", "expired", ...FAILED];

/** Totals and charts, whose `draw(history)` takes the answer. */
export function pastCharts() {
  const totals = el("dl", { class: "metrics" });
  const ended = chart({ title: "Ended executions", series: [["Ended", "first"], ["Failed", "bad"]],
    shows: ([values]) => values.length > 0 });
  const times = ["waiting", "running"].map((name) => [name, chart({
    title: name === "waiting" ? "Waiting time" : "Run time", format: duration,
    series: [["Median", "first"], ["95 %", "second"]] })]);
  return {
    node: el("div", {}, totals,
      el("div", { class: "charts" }, ended.node, times.map(([, { node }]) => node))),
    draw({ points, totals: all, resolution_seconds: seconds }) {
      const words = points.map(({ at }) => AT.format(new Date(at)));
      render(totals, termsOf(totalsOf(all, points.length * seconds)));
      ended.update([points.map(endedOf), points.map(failedOf)], words);
      for (const [name, each] of times)
        each.update([50, 95].map((p) => points.map((point) => point[`${name}_p${p}_seconds`])), words);
    },
  };
}

export function failedOf(counts) {
  return FAILED.reduce((sum, name) => sum + counts[name], 0);
}

export function endedOf(counts) {
  return ENDED.reduce((sum, name) => sum + counts[name], 0);
}

function totalsOf(all, seconds) {
  const [ended, failed] = [endedOf(all), failedOf(all)];
  const both = (name) => [50, 95].map((p) => duration(all[`${name}_p${p}_seconds`])).join(", 95 %: ");
  return [
    ["Admitted", count(all.admitted)],
    ["Ended", `${count(ended)} (${rate(ended / seconds)} /s)`],
    ["Failed", ended ? `${count(failed)} (${failed ? percent(failed / ended) : "0 %"})` : count(failed)],
    ["Waiting time, median", both("waiting")],
    ["Run time, median", both("running")],
    ["Slots in use, mean", rate(all.slots_used)],
  ];
}
