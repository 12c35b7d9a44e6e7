// Which screen an address opens: the fragment is a path and a query, like #/queues/reports.render?key=7.

import { attribute, el, keepingFocus, render, say } from "./dom.js";
import { show as home } from "./home.js";
import { show as queues } from "./queues.js";
import { show as queue } from "./queue.js";
import { show as executions } from "./executions.js";
import { show as execution } from "./execution.js";
import { showAll as resources, show as resource } from "./resources.js";
import { showAll as pools, show as pool } from "./pools.js";
import { show as schedules } from "./schedules.js";
import { show as workers } from "./workers.js";
import { show as worker } from "./worker.js";
import { show as webhooks } from "./webhooks.js";
import { show as deadLetters } from "./dead_letters.js";
import { show as auditLog } from "./audit_log.js";
import { show as tokens } from "./tokens.js";

/** The screens of a link of the navigation, where there are several. */
const GROUPS = {
  "#/resources": [["Resources", "#/resources"], ["Pools", "#/pools"]],
  "#/dead-letters": [["Dead letters", "#/dead-letters"], ["Webhooks", "#/webhooks"],
    ["Schedules", "#/schedules"], ["Audit log", "#/audit-log"], ["Tokens", "#/tokens"], ["API", "docs"]],
};
/** Pattern of the path, screen, title, and the link to which it belongs. */
const SCREENS = [
  [/^\/$/, home, "Home", "#/"],
  [/^\/queues$/, queues, "Queues", "#/queues"],
  [/^\/queues\/(?<ref>.+)$/, queue, "Queue", "#/queues"],
  [/^\/executions$/, executions, "Executions", "#/executions"],
  [/^\/executions\/(?<id>[1-9]\d{0,18})$/, execution, "Execution", "#/executions"],
  [/^\/resources$/, resources, "Resources", "#/resources"],
  [/^\/resources\/(?<ref>.+)$/, resource, "Resource", "#/resources"],
  [/^\/pools$/, pools, "Pools", "#/pools"],
  [/^\/pools\/(?<ref>.+)$/, pool, "Pool", "#/pools"],
  [/^\/schedules$/, schedules, "Schedules", "#/schedules"],
  [/^\/workers$/, workers, "Workers", "#/workers"],
  [/^\/workers\/(?<worker>.+)$/, worker, "Worker", "#/workers"],
  [/^\/webhooks$/, webhooks, "Webhooks", "#/webhooks"],
  [/^\/dead-letters$/, deadLetters, "Dead letters", "#/dead-letters"],
  [/^\/audit-log$/, auditLog, "Audit log", "#/audit-log"],
  [/^\/tokens$/, tokens, "Tokens", "#/tokens"],
];

/**
 * Show the screen of the address in `main`, now and at each change. A screen is a function of `main`, the
 * parts of its address, and {live, signal}; the signal ends with it.
 */
export function route(main, live) {
  let shown = null;
  let path = null;
  function open() {
    const [here, query = ""] = (location.hash.slice(1) || "/").split("?");
    const [show, address, title, tab] = screenOf(here);
    shown?.abort();
    shown = new AbortController();
    mark(tab);
    document.title = `${address.ref ?? (address.id ? `#${address.id}` : title)} · Turnstile`;
    live.watch(address.id ? [address.id] : []);
    keepingFocus(main, () => {
      main.replaceChildren();
      show(main, { ...address, parameters: new URLSearchParams(query) }, { live, signal: shown.signal });
    });
    if (path !== null && path !== here) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
      say(title);
    }
    path = here;
  }
  addEventListener("hashchange", open);
  open();
}

/** Mark the link of a screen, and show those of its group. */
function mark(tab) {
  const isHere = ([, links]) => links.some(([, href]) => href === tab);
  const [top, group = []] = Object.entries(GROUPS).find(isHere) ?? [tab];
  for (const link of document.querySelectorAll("#screens a:not(.alert)"))
    attribute(link, "aria-current", link.getAttribute("href") === top && "page");
  const within = document.getElementById("within");
  within.hidden = group.length === 0;
  render(within, el("ul", {}, group.map(([name, href]) =>
    el("li", {}, el("a", { href, "aria-current": href === tab && "page" }, name)))));
  document.getElementById("menu").ariaExpanded = "false";
}

function screenOf(path) {
  for (const [pattern, show, title, tab] of SCREENS) {
    const found = pattern.exec(path);
    if (!found) continue;
    const parts = Object.entries(found.groups ?? {}).map(([name, value]) => [name, decoded(value)]);
    return [show, Object.fromEntries(parts), title, tab];
  }
  return [notFound, {}, "Page not found", null];
}

function notFound(main) {
  main.append(el("h1", {}, "Page not found"), el("p", {}, el("a", { href: "#/" }, "Go to the home screen")));
}

/** A part of the address; as it is, if it is no encoded text. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
