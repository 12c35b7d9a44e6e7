// The page: selects the screen, shows the totals above it and the state of the event stream.

import { attribute, el, keepingFocus, render, say, text } from "./dom.js";
import { count, percent, perSecond } from "./format.js";
import { showIdentity } from "./identity.js";
import { Live } from "./live.js";
import { termsOf } from "./parts.js";
import { show as queues } from "./queues.js";
import { show as queue } from "./queue.js";
import { show as executions } from "./executions.js";
import { show as execution } from "./execution.js";
import { showAll as resources, show as resource } from "./resources.js";
import { showAll as pools, show as pool } from "./pools.js";
import { show as workers } from "./workers.js";
import { show as worker } from "./worker.js";
import { show as webhooks } from "./webhooks.js";
import { show as deadLetters } from "./dead_letters.js";
import { show as auditLog } from "./audit_log.js";
import { show as tokens } from "./tokens.js";

const SCREENS = [
  [/^\/queues$/, queues, "Queues", "#/queues"],
  [/^\/queues\/(?<ref>.+)$/, queue, "Queue", "#/queues"],
  [/^\/executions$/, executions, "Executions", "#/executions"],
  [/^\/executions\/(?<id>[1-9]\d{0,18})$/, execution, "Execution", "#/executions"],
  [/^\/resources$/, resources, "Resources", "#/resources"],
  [/^\/resources\/(?<ref>.+)$/, resource, "Resource", "#/resources"],
  [/^\/pools$/, pools, "Pools", "#/pools"],
  [/^\/pools\/(?<ref>.+)$/, pool, "Pool", "#/pools"],
  [/^\/workers$/, workers, "Workers", "#/workers"],
  [/^\/workers\/(?<worker>.+)$/, worker, "Worker", "#/workers"],
  [/^\/webhooks$/, webhooks, "Webhooks", "#/webhooks"],
  [/^\/dead-letters$/, deadLetters, "Dead letters", "#/dead-letters"],
  [/^\/audit-log$/, auditLog, "Audit log", "#/audit-log"],
  [/^\/tokens$/, tokens, "Tokens", "#/tokens"],
];
const STATES = { live: "Live", lost: "Connection lost; reconnecting", paused: "Paused",
  refused: "Updated every 5 s" };

const live = new Live();
const main = document.getElementById("main");
let shown = null;
let path = null;

function openScreen() {
  const [here, query = ""] = (location.hash.slice(1) || "/queues").split("?");
  const parameters = new URLSearchParams(query);
  for (const [pattern, show, title, tab] of SCREENS) {
    const match = pattern.exec(here);
    if (!match) continue;
    const named = Object.entries(match.groups ?? {}).map(([name, value]) => [name, decoded(value)]);
    open(show, { ...Object.fromEntries(named), parameters }, title, tab, here);
    return;
  }
  shown?.abort();
  mark(null);
  document.title = "Page not found · Turnstile";
  main.replaceChildren(el("h1", {}, "Page not found"),
    el("p", {}, el("a", { href: "#/queues" }, "Go to queues")));
}

/** A part of the address; as it is, if it is no encoded text. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function mark(tab) {
  for (const link of document.querySelectorAll("nav a:not(.alert)"))
    attribute(link, "aria-current", link.getAttribute("href") === tab && "page");
}

function open(show, route, title, tab, here) {
  shown?.abort();
  shown = new AbortController();
  mark(tab);
  document.title = `${route.ref ?? (route.id ? `#${route.id}` : title)} · Turnstile`;
  live.watch(route.id ? [route.id] : []);
  const moved = path !== null && path !== here;
  path = here;
  keepingFocus(main, () => {
    main.replaceChildren();
    show(main, route, { live, signal: shown.signal });
  });
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    say(title);
  }
}

const TOTALS = [
  ["Queues", (all) => (all.truncated ? `more than ${count(all.queues)}` : count(all.queues))],
  ["Waiting", (all) => count(all.queue_length)],
  ["Slots in use", (all) => count(all.active_count)],
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
    document.querySelector(`nav a[href="${tab}"]`).after(link);
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
showTotals();
showAlerts();
showIdentity(document.getElementById("identity"));
addEventListener("hashchange", openScreen);
document.querySelector(".skip").addEventListener("click", (event) => {
  // The link must not change the address, because the fragment is the route.
  event.preventDefault();
  main.focus();
});
openScreen();
live.start();
