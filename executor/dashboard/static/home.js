// Home: what needs attention, what executions did over time, and the actions with most waiting, failures and
// use.

import { button, el, render, say, text } from "./dom.js";
import { count, percent, rate } from "./format.js";
import { ask, queryOf } from "./api.js";
import { changePause, changePoolPause, changeResourcePause, replayWebhooks } from "./changes.js";
import { loader } from "./list.js";
import { actionOf, afterChange, elapsed, errorLine, failedLink, head, instant, section, tabs }
  from "./parts.js";
import { endedOf, failedOf, pastCharts } from "./past.js";
import { table } from "./table.js";

const EVERY = 5000;
const HISTORY_EVERY = 30000;
const TOP = 5;
const WINDOWS = [["1 hour", "1h"], ["24 hours", "24h"], ["7 days", "7d"]];
const CALM = "All is well: nothing needs attention.";

/** What a card of a kind can do here, where its command is one request; the route that it needs. */
const CHANGES = {
  paused: {
    action: ["POST /actions/{ref}/pause", "Resume",
      ({ subject }) => changePause({ action_ref: subject, paused: true })],
    resource: ["POST /resources/{name}/pause", "Resume",
      ({ subject }) => changeResourcePause({ name: subject, paused: true })],
    pool: ["POST /pools/{name}/pause", "Resume",
      ({ subject }) => changePoolPause({ name: subject, paused: true })],
  },
  webhooks: {
    messages: ["POST /webhooks/replay", "Replay failed",
      () => replayWebhooks({ all: true }, (matched) => `all ${count(matched)} failed webhooks`)],
  },
};

export function show(main, address, context) {
  const { live, signal } = context;
  const given = address.parameters.get("window");
  let period = WINDOWS.some(([, value]) => value === given) ? given : "1h";
  const wrong = errorLine();
  const attention = cards(address, wrong, signal);
  const past = history(() => period, wrong, signal);
  const windows = el("div");
  const describe = () => render(windows, tabs("Time", WINDOWS, (each) => each === period, (value) => {
    period = value;
    window.history.replaceState(null, "", `#/${queryOf({ window: value === "1h" ? null : value })}`);
    describe();
    past.now();
  }));
  describe();
  main.append(head("Home"), wrong, attention.node,
    el("div", { class: "head" }, el("h2", {}, "Over time"), windows), past.node);
  for (const part of [attention, past]) {
    live.on("opening", part.soon, signal);
    live.on("overview", part.soon, signal);
    part.now();
    const timer = setInterval(part.soon, EVERY);
    signal.addEventListener("abort", () => clearInterval(timer));
  }
}

/** The cards of what needs attention, each with its command and, where one request mends it, a button. */
function cards({ parameters }, wrong, signal) {
  const list = el("ul", { class: "cards" });
  const calm = el("p", { class: "calm", role: "status" });
  const loading = loader(async (mine) => {
    const { items } = await ask("GET", "/attention",
      { query: { waited: parameters.get("waited") }, signal: mine });
    text(calm, items.length ? "" : CALM);
    list.hidden = items.length === 0;
    render(list, items.map((each) => cardOf(each, () => loading.now())));
  }, { every: EVERY, signal, wrong });
  return { ...loading, node: el("section", { "aria-labelledby": "attention" },
    el("h2", { id: "attention" }, "Needs attention"), calm, list) };
}

function cardOf(card, changed) {
  const [needs, verb, change] = CHANGES[card.kind]?.[card.subject_kind] ?? [];
  const copy = async () => {
    await navigator.clipboard.writeText(card.command);
    say("Command copied");
  };
  return el("li", { class: `attention ${card.severity}` },
    el("h3", {}, el("span", { class: `badge ${card.severity}` }, card.severity), " ",
      el("a", { href: card.link }, card.title)),
    el("p", {}, card.detail, card.since && [" Since ", instant(card.since), "."]),
    el("div", { class: "mends" }, el("code", {}, card.command),
      navigator.clipboard && button("Copy", copy, { "aria-label": `Copy the command: ${card.command}` }),
      verb && button(verb, () => afterChange(change(card), `${card.subject}: done`, changed),
        { needs, class: "primary", "aria-label": `${verb}: ${card.title}` })));
}

/** Charts and totals of a window, and the top actions. */
function history(period, wrong, signal) {
  const charts = pastCharts();
  const [waiting, failures, use] = [
    top("Most waiting", [
      ["Waiting", "number", (each) => count(each.queue_length)],
      ["Oldest", "number", (each) => elapsed(each.oldest_enqueued_at)],
    ]),
    top("Most failures", [
      ["Failed", "number", (each) => el("a", { class: "failures", href: failedLink(each.action_ref) },
        count(failedOf(each)))],
      ["Share", "number", (each) => percent(failedOf(each) / endedOf(each))],
    ]),
    top("Most use", [
      ["Slots, mean", "number", (each) => rate(each.slots_used)],
      ["Started", "number", (each) => count(each.started)],
    ]),
  ];
  let read = null; // the history that is shown
  let readAt = -Infinity;
  const loading = loader(async (mine) => {
    const isOld = read?.window !== period() || performance.now() - readAt > HISTORY_EVERY;
    const [queues, found] = await Promise.all([
      ask("GET", "/queues", { query: { sort: "waiting", group: "action", limit: TOP }, signal: mine }),
      isOld ? ask("GET", "/history", { query: { window: period() }, signal: mine }) : read,
    ]);
    if (isOld) {
      read = found;
      readAt = performance.now();
      charts.draw(read);
      draw(read);
    }
    waiting.update(queues.items.filter((each) => each.queue_length > 0));
  }, { every: EVERY, signal, wrong });

  function draw({ actions }) {
    const most = (of) => [...actions].filter((each) => of(each) > 0).sort((a, b) => of(b) - of(a));
    failures.update(most(failedOf).slice(0, TOP));
    use.update(most((each) => each.slots_used).slice(0, TOP));
  }
  return {
    now: loading.now, soon: loading.soon,
    node: el("div", {}, charts.node,
      el("div", { class: "tops" }, [waiting, failures, use].map(({ node }) => node))),
  };
}

function top(title, columns) {
  const shown = table(title, [["Action", "row", actionOf], ...columns],
    { empty: "None.", keyOf: (each) => `${each.action_ref}/${each.concurrency_key ?? ""}` });
  return { update: shown.update, node: section(title, shown.node) };
}
