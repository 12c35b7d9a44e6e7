// The screen of webhooks: state, last response, and replay.

import { el, say, text } from "./dom.js";
import { ask, queryOf } from "./api.js";
import { badge, cell, instant, loader, pager, plainRow, table, errorLine } from "./parts.js";
import { executionLink } from "./queue.js";
import { replayWebhooks } from "./changes.js";

const PAGE = 50;
const EVERY = 2000;
const STATES = ["pending", "delivered", "failed"];

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const states = el("fieldset", { class: "choices" }, el("legend", {}, "State"), STATES.map((state) =>
    el("label", {}, el("input", { type: "checkbox", value: state, checked: parameters.getAll("state").includes(state) }), state)));
  const chosen = () => [...states.querySelectorAll(":checked")].map((box) => box.value);
  let cursor = null;
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const shown = table("Webhooks, newest execution first", [
    ["Execution", ""], ["State", ""], ["Receiver", ""], ["Last response", ""], ["Attempts", "number"], ["Time", ""], ["Actions", "does"],
  ], { empty: "No webhooks in this state." });
  const cells = (webhook) => cellsOf(webhook, () => act({ ids: [webhook.execution_id] }, `the webhook of execution ${webhook.execution_id}`));
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/webhooks", { query: { state: chosen(), limit: PAGE, cursor }, signal: mine });
    shown.update(page.items, (each) => each.execution_id, plainRow(cells));
    pages.update(page.next_cursor, null);
  }, { every: EVERY, signal, wrong });

  async function act(selection, subject) {
    if (!await replayWebhooks(selection, subject)) return;
    say("Done");
    await loading.now();
  }
  states.addEventListener("change", () => {
    cursor = null;
    pages.reset();
    history.replaceState(null, "", `#/webhooks${queryOf({ state: chosen() })}`);
    loading.now();
  });
  // There is no event for a delivery.
  const polling = setInterval(() => pages.isFirst() && loading.soon(), EVERY);
  signal.addEventListener("abort", () => clearInterval(polling));
  live.on("opening", loading.soon, signal);
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Webhooks"),
      el("button", { type: "button", on: { click: () => act({ all: true }, "all failed webhooks") } }, "Replay all failed")),
    el("form", { class: "filters" }, states), wrong, shown.node, pages.node);
  loading.now();
}

function cellsOf(webhook, again) {
  const { execution_id: id, state } = webhook;
  return [
    el("th", { scope: "row" }, executionLink(id), el("span", { class: "key" }, webhook.action_ref ?? "pruned")),
    cell("State", {}, badge(state)),
    cell("Receiver", {}, el("span", { class: "pair" }, webhook.url)),
    cell("Last response", {}, webhook.last_error ?? webhook.last_status ?? "–"),
    cell("Attempts", { class: "number" }, webhook.attempts),
    cell("Time", {}, state === "pending"
      ? el("span", {}, webhook.claimed_until ? "in progress since " : "due ", instant(webhook.due_at)) : instant(webhook.settled_at, { ago: true })),
    cell("", { class: "does" }, state === "pending" ? null
      : el("button", { type: "button", "aria-label": `Replay the webhook of execution ${id}`, on: { click: again } }, "Replay")),
  ];
}
