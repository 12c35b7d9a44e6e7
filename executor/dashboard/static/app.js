// The page: shows the screen, the totals above it and the state of the event stream.

import { attribute, el, render, text } from "./dom.js";
import { count, percent, perSecond } from "./format.js";
import { showHeader } from "./identity.js";
import { Live } from "./live.js";
import { slotsInUse, termsOf } from "./parts.js";
import { route } from "./router.js";
import { listenForKeys, searchField } from "./search.js";

const STATES = { live: "Live", lost: "Connection lost; reconnecting", paused: "Paused",
  refused: "Updated every 5 s" };

const live = new Live();
const TOTALS = [
  ["Queues", (all) => (all.truncated ? `more than ${count(all.queues)}` : count(all.queues))],
  ["Waiting", (all) => count(all.queue_length)],
  ["Slots in use", (all) => count(slotsInUse(all))],
  ["Admitted", (all) => perSecond(all.enqueued_per_second)],
  ["Completed", (all) => perSecond(all.completed_per_second)],
  ["Failed, last 10 min", (all) => failedIn(all.failures)],
  ["Workers", (all) => workersIn(all.workers)],
];

function failedIn({ failed, ended }) {
  return failed ? `${count(failed)} (${percent(failed / ended)})` : "0";
}

function workersIn({ live: alive, draining, overdue, capacity }) {
  const others = [draining && `${draining} draining`, overdue && `${overdue} overdue`].filter(Boolean);
  return [`${count(alive)}, capacity ${count(capacity)}`, ...others].join(", ");
}

/** Badges in the navigation; absent at zero. */
const ALERTS = [
  ["#/dead-letters", "#/dead-letters", (all) => all.dead_letters,
    (shown) => `${shown} dead letter${shown === "1" ? "" : "s"}`],
  ["#/workers", "#/workers?state=lost", (all) => all.workers.lost,
    (shown) => `${shown} worker${shown === "1" ? "" : "s"} lost in the last 24 hours`],
];
const COUNTED_MAX = 1000;

function showAlerts() {
  for (const [tab, href, valueOf, words] of ALERTS) {
    const link = el("a", { class: "alert", href, hidden: true });
    document.querySelector(`#screens a[href="${tab}"]`).after(link);
    live.on("overview", (all) => {
      const value = valueOf(all) ?? 0;
      const shown = value > COUNTED_MAX ? `${count(COUNTED_MAX)}+` : count(value);
      link.hidden = value === 0;
      text(link, shown);
      for (const name of ["aria-label", "title"])
        attribute(link, name, words(value > COUNTED_MAX ? `more than ${count(COUNTED_MAX)}` : shown));
    });
  }
}

function showTotals() {
  const totals = el("dl");
  const draw = (valueOf) => render(totals, termsOf(TOTALS.map(([name, of]) => [name, valueOf(of)])));
  draw(() => "–");
  document.getElementById("overview").append(totals);
  const trouble = document.getElementById("trouble");
  live.on("overview", (all) => {
    draw((of) => of(all));
    const parts = [
      ...Object.entries(all.trouble).map(([part, reason]) => `Cannot reach the ${part}: ${reason}`),
      ...Object.entries(all.degraded ?? {}).map(([part, reason]) => `Does not work: ${part}: ${reason}`),
    ];
    trouble.hidden = parts.length === 0;
    render(trouble, parts.map((words) => el("p", {}, words)));
  });
}

live.on("state", (state) => {
  const node = document.getElementById("live");
  node.dataset.state = state;
  // The totals are about all actions, like the events that bring them.
  document.getElementById("overview").hidden = state === "refused";
  text(node, STATES[state]);
});
/** On a phone the links are behind one button. */
function showMenu() {
  const menu = document.getElementById("menu");
  menu.addEventListener("click", () => { menu.ariaExpanded = String(menu.ariaExpanded !== "true"); });
}

const finder = searchField();
document.getElementById("finder").append(finder);
listenForKeys(finder);
showMenu();
showTotals();
showAlerts();
route(showHeader(), live);
live.start();
