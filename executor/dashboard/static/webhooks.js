// The screen of webhooks: state, last response, and replay.

import { el, say, text } from "./dom.js";
import { ask, queryOf } from "./api.js";
import { badge, instant, loader, pager, table, errorLine } from "./parts.js";
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
  const again = ({ execution_id: id }) => el("button", {
    type: "button", needs: "POST /webhooks/replay", "aria-label": `Replay the webhook of execution ${id}`,
    on: { click: () => act({ ids: [id] }, `the webhook of execution ${id}`) },
  }, "Replay");
  const shown = table("Webhooks, newest execution first", [
    ["Execution", "row", (each) => [executionLink(each.execution_id), el("span", { class: "key" }, each.action_ref ?? "pruned")]],
    ["State", "", ({ state }) => badge(state)],
    ["Receiver", "", ({ url }) => el("span", { class: "pair" }, url)],
    ["Last response", "", (each) => each.last_error ?? each.last_status ?? "–"],
    ["Attempts", "number", ({ attempts }) => attempts],
    ["Time", "", timeOf],
    ["Actions", "does", (each) => (each.state === "pending" ? null : again(each))],
  ], { empty: "No webhooks in this state.", keyOf: (each) => each.execution_id });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/webhooks", { query: { state: chosen(), limit: PAGE, cursor }, signal: mine });
    shown.update(page.items);
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
      el("button", { type: "button", needs: "POST /webhooks/replay", on: { click: () => act({ all: true }, "all failed webhooks") } }, "Replay all failed")),
    el("form", { class: "filters" }, states), wrong, shown.node, pages.node);
  loading.now();
}

function timeOf({ state, claimed_until: claimed, due_at: due, settled_at: settled }) {
  if (state !== "pending") return instant(settled);
  return el("span", {}, claimed ? "in progress, claimed " : "due ", instant(due));
}
