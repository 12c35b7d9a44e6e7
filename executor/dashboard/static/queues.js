// The screen of all queues: the executor sorts, searches and paginates; events update the rows of a page.

import { button, el, text } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { afterChange, badge, elapsed, failuresOf, head, keyOf, queueLink, slotsOf } from "./parts.js";
import { sparkline } from "./chart.js";
import { changeLimitOf, changePause, limitRoute } from "./changes.js";
import { list } from "./list.js";
import { table } from "./table.js";

const PAGE = 50;
const TYPING_MILLISECONDS = 250;

export function show(main, address, context) {
  const { parameters } = address;
  const query = { search: parameters.get("search") ?? "", sort: parameters.get("sort") ?? "waiting" };
  const words = el("p", { class: "said", role: "status" });
  const search = el("input", { type: "search", id: "search", value: query.search, autocomplete: "off",
    spellcheck: "false" });
  const sorting = {
    ascending: ["name", "oldest"],
    chosen: () => query.sort,
    choose(order) {
      query.sort = order;
      shown.head();
      queues.pages.refined();
    },
  };
  const columns = columnsOf((act, queue, message) => afterChange(act(queue), message, queues.now));
  const shown = table("Queues", columns,
    { empty: "No matching queues.", sorting,
      keyOf: ({ action_ref: ref, concurrency_key: key }) => JSON.stringify([ref, key]) });
  const queues = list(address, context, {
    path: "queues", table: shown, size: PAGE, every: 2000, search: () => query, follows: () => true,
    loaded({ total, truncated, next_cursor: next }) {
      queues.pages.update(next, Math.ceil(total / PAGE));
      text(words, counted(total, "queue") + (truncated ? " shown, the busiest ones" : ""));
    },
  });
  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => {
      query.search = search.value.trim();
      queues.pages.refined();
    }, TYPING_MILLISECONDS);
  });
  context.signal.addEventListener("abort", () => clearTimeout(typed));
  context.live.on("queues", ({ items }) => {
    shown.patch(items);
    queues.soon();
  }, context.signal);
  main.append(
    head("Queues", el("div", { class: "field search" },
      el("label", { for: "search" }, "Search by action or key"), search)),
    queues.wrong, words, ...queues.nodes);
  queues.now();
}

function columnsOf(change) {
  return [
    ["Queue", "row name", nameOf, "name"],
    ["Slots", "", slotsOf, "occupancy"],
    ["Waiting", "number", (each) => count(each.queue_length), "waiting"],
    ["Oldest waiting", "number", (each) => elapsed(each.oldest_enqueued_at), "oldest"],
    ["Failed", "number", failuresOf, "failures"],
    ["Admitted /s", "number", (each) => rate(each.enqueued_per_second)],
    ["Completed /s", "number", (each) => rate(each.completed_per_second), "rate"],
    ["Last 5 minutes", "", (each) => sparkline(each.depths)],
    ["Actions", "does", (each) => buttonsOf(each, change)],
  ];
}

function nameOf(queue) {
  const states = [queue.paused && badge("paused"), !queue.served && badge("no_worker")];
  return [el("a", { href: queueLink(queue) }, queue.action_ref), keyOf(queue.concurrency_key),
    el("span", { class: "states" }, states)];
}

function buttonsOf(queue, change) {
  const { action_ref: ref, concurrency_key: key, paused } = queue;
  const verb = paused ? "Resume" : "Pause";
  const name = key === null ? ref : `key ${key} of ${ref}`;
  return [
    button(verb, () => change(changePause, queue, `${ref} ${paused ? "resumed" : "paused"}`), {
      needs: "POST /actions/{ref}/pause",
      "aria-label": `${verb} ${key === null ? ref : `all keys of ${ref}`}`,
    }),
    button("Limit", () => change(changeLimitOf, queue, `Limit of ${name} changed`),
      { needs: limitRoute(queue), "aria-label": `Limit of ${name}` }),
  ];
}
