// The screen of webhooks: state, last response, and replay.

import { button, el } from "./dom.js";
import { counted } from "./format.js";
import { auditLogOf } from "./audit_log.js";
import { replayWebhooks } from "./changes.js";
import { choices, list, polled } from "./list.js";
import { badge, executionLink, head, instant, resultLine } from "./parts.js";
import { block } from "./permissions.js";
import { table } from "./table.js";

const EVERY = 2000;
const LOADING = "The webhooks are loading.";
const NOT_LOADED = "The list could not be loaded.";
const RUNNING = "A replay is being prepared.";
const NOTHING = "No webhook has failed.";

export function show(main, address, context) {
  const states = choices("State", ["pending", "delivered", "failed"], address.parameters.getAll("state"));
  const result = resultLine({ changed: () => webhooks.now(), describe });
  const replay = (selection, subjectOf) => result.run(() => replayWebhooks(selection, subjectOf));
  const replayAll = button("Replay all failed",
    () => replay({ all: true }, (matched) => `all ${counted(matched, "failed webhook")}`),
    { needs: "POST /webhooks/replay" });
  const shown = table("Webhooks, newest execution first", columnsOf(replay),
    { empty: "No webhooks in this state.", keyOf: (each) => each.execution_id });
  let reason = LOADING; // why no failed webhook can be replayed, or null
  const webhooks = list(address, context, {
    path: "webhooks", table: shown, every: EVERY, search: () => ({ state: states.chosen() }),
    loaded(page) {
      reason = showsNoFailed(page) ? NOTHING : null;
      describe();
    },
    failed() {
      reason = NOT_LOADED;
      describe();
    },
  });

  function describe() {
    block(replayAll, result.isRunning() ? RUNNING : reason);
  }
  /** Whether the page would show a failed webhook if there were one. */
  function showsNoFailed({ items, next_cursor: next }) {
    const isWhole = webhooks.pages.isFirst() && next === null;
    const showsFailed = states.chosen().length === 0 || states.chosen().includes("failed");
    return isWhole && showsFailed && !items.some(({ state }) => state === "failed");
  }
  states.node.addEventListener("change", webhooks.pages.changed);
  polled(webhooks, EVERY, context.signal, webhooks.pages.isFirst);
  describe();
  main.append(
    head("Webhooks", replayAll), el("form", { class: "filters" }, states.node), webhooks.wrong, result.node,
    ...webhooks.nodes, auditLogOf({ subject_kind: "webhook" }, context.signal));
  webhooks.now();
}

function columnsOf(replay) {
  const again = ({ execution_id: id }) => button("Replay",
    () => replay({ ids: [id] }, () => `the webhook of execution ${id}`),
    { needs: "POST /webhooks/replay", "aria-label": `Replay the webhook of execution ${id}` });
  return [
    ["Execution", "row", (each) => [executionLink(each.execution_id),
      el("span", { class: "key" }, each.action_ref ?? "pruned")]],
    ["State", "", ({ state }) => badge(state)],
    ["Receiver", "", ({ url }) => el("span", { class: "pair" }, url)],
    ["Last response", "", (each) => each.last_error ?? each.last_status ?? "–"],
    ["Attempts", "number", ({ attempts }) => attempts],
    ["Time", "", timeOf],
    ["Actions", "does", (each) => each.state !== "pending" && again(each)],
  ];
}

function timeOf({ state, claimed_until: claimed, due_at: due, ended_at: ended }) {
  if (state !== "pending") return instant(ended);
  return el("span", {}, claimed ? "in progress, claimed " : "due ", instant(due));
}
