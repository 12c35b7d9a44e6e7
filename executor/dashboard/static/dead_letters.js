// The screen of dead letters: list, show, replay (also with another body), purge.

import { el, text } from "./dom.js";
import { count, counted } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { auditLogOf } from "./audit_log.js";
import { badge, errorLine, instant, listPages, loader, resultLine, table, termsOf } from "./parts.js";
import { show as showDialog } from "./dialog.js";
import { changeDeadLetters, replayEdited } from "./changes.js";
import { block } from "./permissions.js";

const PAGE = 50;
const LOADING = "The dead letters are loading.";
const NOT_LOADED = "The list could not be loaded.";
const NOT_SHOWN = "The list does not show this error code yet.";
const RUNNING = "A change is being prepared.";
const NOTHING = "Nothing to replay or purge.";

export function show(main, { parameters }, { live, signal }) {
  const chosen = new Set();
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  const result = resultLine({ changed: () => pages.changed(), describe });
  const code = el("input", { type: "text", id: "code", value: parameters.get("code") ?? "",
    placeholder: "unknown_action", autocomplete: "off" });
  const order = el("select", { id: "order" },
    [["newest", "Newest first"], ["oldest", "Oldest first"]].map(([value, words]) =>
    el("option", { value, selected: value === parameters.get("order") }, words)));
  let listed = null; // what the rows show: {code, isEmpty}
  let isFailed = false;
  const pages = listPages({
    parameters, path: "dead-letters",
    search: () => ({ code: code.value.trim(), order: order.value === "newest" ? null : order.value }),
    reload: () => {
      chosen.clear();
      return loading.now();
    },
  });
  const open = (letter) => read(letter, wrong, result.report);
  const shown = table("Dead letters", [
    ["Select", "", (letter) => boxOf(letter, chosen, describe)],
    ["ID", "row id", (letter) => el("button",
      { type: "button", class: "link", on: { click: () => open(letter) } }, letter.id)],
    ["Reason", "", (letter) => el("div", {}, badge(letter.code), " ", letter.error)],
    ["Message", "", (letter) => letter.type ?? letter.original_routing_key],
    ["Dead-lettered", "", (letter) => instant(letter.died_at)],
    ["Size", "number", (letter) => `${count(letter.body_bytes)} B`],
  ], { empty: "No dead letters." });
  const replay = el("button", { type: "button", needs: "POST /dead-letters/replay",
    on: { click: () => act("replay") } });
  const purge = el("button", { type: "button", class: "danger", needs: "POST /dead-letters/purge",
    on: { click: () => act("purge") } });
  const loading = loader(async (mine) => {
    const reason = code.value.trim();
    const page = await ask("GET", "/dead-letters",
      { query: { code: reason, order: order.value, limit: PAGE, cursor: pages.cursor() }, signal: mine });
    listed = { code: reason, isEmpty: page.items.length === 0 && pages.isFirst() };
    isFailed = false;
    shown.update(page.items);
    pages.update(page.next_cursor);
    text(words, page.total ? `${counted(page.total, "dead letter")} in total` : "");
    describe();
  }, { every: 1000, signal, wrong, failed: () => { isFailed = true; describe(); } });

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
    for (const button of [replay, purge]) block(button, blocked());
  }
  function act(verb) {
    const [selection, subjectOf] = target();
    return result.run(() => changeDeadLetters(verb, selection, subjectOf));
  }
  for (const control of [code, order]) control.addEventListener("change", pages.changed);
  code.addEventListener("input", describe);
  // What is selected keeps its position: the list is not reloaded meanwhile.
  live.on("overview", () => pages.isFirst() && chosen.size === 0 && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  describe();
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Dead letters"),
      el("div", { class: "search-fields" },
        el("div", { class: "field search" }, el("label", { for: "code" }, "Error code"), code),
        el("div", { class: "field" }, el("label", { for: "order" }, "Order"), order)),
      el("div", { class: "buttons" }, el("button", { type: "button", on: { click: () => loading.now() } },
        "Refresh"), replay, purge)),
    wrong, result.node, words, shown.node, pages.node, auditLogOf({ subject_kind: "dead_letter" }, signal));
  loading.now();
}

function boxOf(letter, chosen, selected) {
  const box = el("input", { type: "checkbox", "aria-label": `Select ${letter.id}`,
    checked: chosen.has(letter.id) });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(letter.id);
    else chosen.delete(letter.id);
    selected();
  });
  return box;
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
  const edit = el("button", { type: "button", needs: "POST /dead-letters/replay",
    on: { click: async (event) => {
    event.target.closest("dialog").close();
    await report(await replayEdited(letter));
  } } }, "Edit and replay");
  showDialog(`Dead letter ${id}`, el("p", {}, badge(letter.code), " ", letter.error),
    el("dl", { class: "metrics" }, termsOf(facts)),
    el("h3", {}, bodyTitle(letter)), canBeEdited(letter) ? edit : null,
    el("pre", { tabindex: 0, "aria-label": "Body" }, letter.body),
    el("h3", {}, "Headers"), el("pre", { tabindex: 0, "aria-label": "Headers" },
      writeJson(letter.headers, 2)));
}

/** Whether the body is text and is shown completely. */
function canBeEdited({ body, body_encoding: encoding, body_bytes: bytes }) {
  return encoding === "text" && new TextEncoder().encode(body).length === bytes;
}

function bodyTitle({ body_encoding: encoding, body_truncated: truncated }) {
  const title = encoding === "text" ? "Body" : "Body, in base64";
  return truncated ? `${title} (only the beginning is stored)` : title;
}
