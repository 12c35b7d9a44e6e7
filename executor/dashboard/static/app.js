// Puts the page together: which screen is shown, the totals above it, and whether what is shown is live.

import { el, say, text } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { Live } from "./live.js";
import { show as queues } from "./queues.js";
import { show as queue } from "./queue.js";
import { show as executions } from "./executions.js";
import { show as execution } from "./execution.js";
import { show as workers } from "./workers.js";
import { show as webhooks } from "./webhooks.js";
import { show as deadLetters } from "./dead_letters.js";

const SCREENS = [
  [/^\/queues$/, queues, "Queues", "#/queues"],
  [/^\/queue\/(?<ref>.+)$/, queue, "Queue", "#/queues"],
  [/^\/executions$/, executions, "Executions", "#/executions"],
  [/^\/executions\/(?<id>[1-9]\d{0,18})$/, execution, "Execution", "#/executions"],
  [/^\/workers$/, workers, "Workers", "#/workers"],
  [/^\/webhooks$/, webhooks, "Webhooks", "#/webhooks"],
  [/^\/dead-letters$/, deadLetters, "Dead letters", "#/dead-letters"],
];
const STATES = { live: "Live", lost: "Connection lost, trying again", paused: "Paused" };

const live = new Live();
const main = document.getElementById("main");
let shown = null;
let path = null;

function route() {
  const [here, query = ""] = (location.hash.slice(1) || "/queues").split("?");
  const parameters = new URLSearchParams(query);
  for (const [pattern, show, title, tab] of SCREENS) {
    const match = pattern.exec(here);
    if (!match) continue;
    const named = Object.entries(match.groups ?? {}).map(([name, value]) => [name, decodeURIComponent(value)]);
    open(show, { ...Object.fromEntries(named), parameters }, title, tab, here);
    return;
  }
  main.replaceChildren(el("h1", {}, "Nothing is here"), el("p", {}, el("a", { href: "#/queues" }, "To the queues")));
}

function open(show, place, title, tab, here) {
  shown?.abort();
  shown = new AbortController();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${place.ref ?? (place.id ? `#${place.id}` : title)} · Turnstile`;
  live.watch(place.id ? [place.id] : []);
  const moved = path !== null && path !== here;
  path = here;
  main.replaceChildren();
  show(main, place, { live, signal: shown.signal });
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    say(title);
  }
}

const FIGURES = [
  ["Queues", (all) => (all.truncated ? `${count(all.queues)} and more` : count(all.queues))],
  ["Waiting", (all) => count(all.queue_length)],
  ["Slots held", (all) => count(all.active_count)],
  ["Admitted", (all) => `${rate(all.enqueued_per_second)} /s`],
  ["Ended", (all) => `${rate(all.completed_per_second)} /s`],
  ["Workers", (all) => workersIn(all.workers)],
];

function workersIn({ live: there, draining, overdue, places }) {
  const others = [draining && `${draining} draining`, overdue && `${overdue} overdue`].filter(Boolean);
  return [`${count(there)} with ${counted(places, "place")}`, ...others].join(", ");
}

function figures() {
  const values = FIGURES.map(([name]) => [el("dt", {}, name), el("dd", {}, "–")]);
  document.getElementById("overview").replaceChildren(
    el("dl", {}, values.map((pair) => el("div", {}, pair))));
  const trouble = document.getElementById("trouble");
  live.on("overview", (all) => {
    FIGURES.forEach(([, said], place) => text(values[place][1], said(all)));
    const parts = Object.entries(all.trouble);
    trouble.hidden = parts.length === 0;
    text(trouble, parts.map(([part, reason]) => `The ${part} cannot be reached: ${reason}`).join(" "));
  });
}

live.on("state", (state) => {
  const node = document.getElementById("live");
  node.dataset.state = state;
  text(node, STATES[state]);
});
figures();
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address is the route: it stays.
  event.preventDefault();
  main.focus();
});
route();
live.start();
