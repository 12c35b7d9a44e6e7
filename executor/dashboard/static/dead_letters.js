// The screen of dead letters: list, show, replay (also with another body), purge.

import { button, el, text } from "./dom.js";
import { count, counted } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { auditLogOf } from "./audit_log.js";
import { changeDeadLetters, replayEdited } from "./changes.js";
import { show as showDialog } from "./dialog.js";
import { list } from "./list.js";
import { badge, head, instant, resultLine, termsOf } from "./parts.js";
import { block } from "./permissions.js";
import { table } from "./table.js";

const LOADING = "The dead letters are loading.";
const NOT_LOADED = "The list could not be loaded.";
const NOT_SHOWN = "The list does not show this error code yet.";
const RUNNING = "A change is being prepared.";
const NOTHING = "Nothing to replay or purge.";
const REPLAY = "POST /dead-letters/replay";

export function show(main, address, context) {
  const { parameters } = address;
  const chosen = new Set();
  const words = el("p", { class: "said", role: "status" });
  const result = resultLine({ changed: () => letters.pages.changed(), describe });
  const code = el("input", { type: "text", id: "code", value: parameters.get("code") ?? "",
    placeholder: "unknown_action", autocomplete: "off" });
  const order = el("select", { id: "order" },
    [["newest", "Newest first"], ["oldest", "Oldest first"]].map(([value, words]) =>
      el("option", { value, selected: value === parameters.get("order") }, words)));
  const shown = table("Dead letters", columnsOf(chosen, describe,
    (letter) => read(letter, letters.wrong, result.report)), { empty: "No dead letters." });
  const replay = button("", () => act("replay"), { needs: REPLAY });
  const purge = button("", () => act("purge"), { class: "danger", needs: "POST /dead-letters/purge" });
  let listed = null; // what the rows show: {code, isEmpty}
  let isFailed = false;
  const letters = list(address, context, {
    path: "dead-letters", table: shown, every: 1000,
    search: () => ({ code: code.value.trim(), order: order.value === "newest" ? null : order.value }),
    query: () => ({ code: code.value.trim(), order: order.value }),
    // What is selected keeps its position: the list is not reloaded meanwhile.
    follows: () => letters.pages.isFirst() && chosen.size === 0,
    loaded({ items, total }, asked) {
      // Letters of another page are not selected.
      for (const id of [...chosen]) if (!items.some((letter) => letter.id === id)) chosen.delete(id);
      listed = { code: asked.code, isEmpty: items.length === 0 && letters.pages.isFirst() };
      isFailed = false;
      text(words, total ? `${counted(total, "dead letter")} in total` : "");
      describe();
    },
    failed() {
      isFailed = true;
      describe();
    },
  });

  /** What the buttons act on, and its name by count: the selected messages, those with the code, or all. */
  function target() {
    if (chosen.size) return [{ ids: [...chosen] }, (matched) => counted(matched, "selected message")];
    const { code: reason } = listed;
    return reason
      ? [{ code: reason }, (matched) => `${counted(matched, "message")} with the code ${reason}`]
      : [{ all: true }, (matched) => `all ${counted(matched, "message")}`];
  }
  /** Why nothing can be replayed or purged, or null: what is changed must be what the list shows. */
  function blocked() {
    if (result.isRunning()) return RUNNING;
    if (isFailed) return NOT_LOADED;
    if (listed === null) return LOADING;
    if (listed.code !== code.value.trim()) return NOT_SHOWN;
    return listed.isEmpty && chosen.size === 0 ? NOTHING : null;
  }
  function describe() {
    const scope = chosen.size ? `${chosen.size} selected` : code.value.trim() ? "all with this code" : "all";
    text(replay, `Replay ${scope}`);
    text(purge, `Purge ${scope}`);
    for (const each of [replay, purge]) block(each, blocked());
  }
  function act(verb) {
    const [selection, subjectOf] = target();
    return result.run(() => changeDeadLetters(verb, selection, subjectOf));
  }
  for (const control of [code, order]) control.addEventListener("change", letters.pages.changed);
  code.addEventListener("input", describe);
  describe();
  main.append(
    head("Dead letters",
      el("div", { class: "search-fields" },
        el("div", { class: "field search" }, el("label", { for: "code" }, "Error code"), code),
        el("div", { class: "field" }, el("label", { for: "order" }, "Order"), order)),
      el("div", { class: "buttons" }, button("Refresh", letters.now), replay, purge)),
    letters.wrong, result.node, words, ...letters.nodes,
    auditLogOf({ subject_kind: "dead_letter" }, context.signal));
  letters.now();
}

function columnsOf(chosen, selected, open) {
  const boxOf = ({ id }) => el("input", {
    type: "checkbox", "aria-label": `Select ${id}`, checked: chosen.has(id),
    on: {
      change({ target }) {
        if (target.checked) chosen.add(id);
        else chosen.delete(id);
        selected();
      },
    },
  });
  return [
    ["Select", "", boxOf],
    ["ID", "row id", (letter) => button(letter.id, () => open(letter), { class: "link" })],
    ["Reason", "", (letter) => el("div", {}, badge(letter.code), " ", letter.error)],
    ["Message", "", (letter) => letter.type ?? letter.original_routing_key],
    ["Dead-lettered", "", (letter) => instant(letter.died_at)],
    ["Size", "number", (letter) => `${count(letter.body_bytes)} B`],
  ];
}

async function read({ id }, wrong, report) {
  let letter;
  try {
    letter = await ask("GET", `/dead-letters/${encodeURIComponent(id)}`);
  } catch (error) {
    text(wrong, error.message);
    return;
  }
  const facts = [
    ["Routing key", letter.original_routing_key],
    ["Message ID", letter.message_id ?? "none"], ["Published", instant(letter.published_at)],
    ["Dead-lettered", instant(letter.died_at)], ["Sender", letter.app_id ?? "unknown"],
  ];
  const edit = async (event) => {
    event.target.closest("dialog").close();
    await report(await replayEdited(letter));
  };
  showDialog(`Dead letter ${id}`, el("p", {}, badge(letter.code), " ", letter.error),
    el("dl", { class: "metrics" }, termsOf(facts)),
    el("h3", {}, bodyTitle(letter)),
    canBeEdited(letter) && button("Edit and replay", edit, { needs: REPLAY }),
    el("pre", { tabindex: 0, "aria-label": "Body" }, letter.body),
    el("h3", {}, "Headers"), el("pre", { tabindex: 0, "aria-label": "Headers" },
      writeJson(letter.headers, 2)));
}

/** Whether the body is text and shown completely. */
function canBeEdited({ body, body_encoding: encoding, body_bytes: bytes }) {
  return encoding === "text" && new TextEncoder().encode(body).length === bytes;
}

function bodyTitle({ body_encoding: encoding, body_truncated: truncated }) {
  const title = encoding === "text" ? "Body" : "Body, in base64";
  return truncated ? `${title} (only the beginning is stored)` : title;
}
