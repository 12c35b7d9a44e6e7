// The screen of webhooks: state, last response, and replay.

import { el } from "./dom.js";
import { ask } from "./api.js";
import { counted } from "./format.js";
import { badge, errorLine, executionLink, instant, listPages, loader, resultLine, table } from "./parts.js";
import { auditLogOf } from "./audit_log.js";
import { replayWebhooks } from "./changes.js";
import { block } from "./permissions.js";

const PAGE = 50;
const EVERY = 2000;
const STATES = ["pending", "delivered", "failed"];
const LOADING = "The webhooks are loading.";
const NOT_LOADED = "The list could not be loaded.";
const RUNNING = "A replay is being prepared.";
const NOTHING = "No webhook has failed.";

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const states = el("fieldset", { class: "choices" }, el("legend", {}, "State"), STATES.map((state) =>
    el("label", {}, el("input", { type: "checkbox", value: state,
      checked: parameters.getAll("state").includes(state) }), state)));
  const chosen = () => [...states.querySelectorAll(":checked")].map((box) => box.value);
  const pages = listPages({ parameters, path: "webhooks", search: () => ({ state: chosen() }),
    reload: () => loading.now() });
  const again = ({ execution_id: id }) => el("button", {
    type: "button", needs: "POST /webhooks/replay", "aria-label": `Replay the webhook of execution ${id}`,
    on: { click: () => act({ ids: [id] }, () => `the webhook of execution ${id}`) },
  }, "Replay");
  const replayAll = el("button", { type: "button", needs: "POST /webhooks/replay",
    on: { click: () => act({ all: true }, (matched) => `all ${counted(matched, "failed webhook")}`) },
  }, "Replay all failed");
  let reason = LOADING; // why no failed webhook can be replayed, or null
  const describe = () => block(replayAll, result.isRunning() ? RUNNING : reason);
  const result = resultLine({ changed: () => loading.now(), describe });
  const shown = table("Webhooks, newest execution first", [
    ["Execution", "row", (each) => [executionLink(each.execution_id),
      el("span", { class: "key" }, each.action_ref ?? "pruned")]],
    ["State", "", ({ state }) => badge(state)],
    ["Receiver", "", ({ url }) => el("span", { class: "pair" }, url)],
    ["Last response", "", (each) => each.last_error ?? each.last_status ?? "–"],
    ["Attempts", "number", ({ attempts }) => attempts],
    ["Time", "", timeOf],
    ["Actions", "does", (each) => (each.state === "pending" ? null : again(each))],
  ], { empty: "No webhooks in this state.", keyOf: (each) => each.execution_id });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/webhooks",
      { query: { state: chosen(), limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
    reason = showsNoFailed(page) ? NOTHING : null;
    describe();
  }, { every: EVERY, signal, wrong, failed: () => { reason = NOT_LOADED; describe(); } });

  /** Whether the page would show a failed webhook if there were one. */
  function showsNoFailed({ items, next_cursor: next }) {
    const isWhole = pages.isFirst() && next === null;
    const showsFailed = chosen().length === 0 || chosen().includes("failed");
    return isWhole && showsFailed && !items.some(({ state }) => state === "failed");
  }
  function act(selection, subjectOf) {
    return result.run(() => replayWebhooks(selection, subjectOf));
  }
  states.addEventListener("change", pages.changed);
  // There is no event for a delivery.
  const polling = setInterval(() => pages.isFirst() && loading.soon(), EVERY);
  signal.addEventListener("abort", () => clearInterval(polling));
  live.on("opening", loading.soon, signal);
  describe();
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Webhooks"), replayAll),
    el("form", { class: "filters" }, states), wrong, result.node, shown.node, pages.node,
    auditLogOf({ subject_kind: "webhook" }, signal));
  loading.now();
}

function timeOf({ state, claimed_until: claimed, due_at: due, ended_at: ended }) {
  if (state !== "pending") return instant(ended);
  return el("span", {}, claimed ? "in progress, claimed " : "due ", instant(due));
}
