// The screen of dead letters: list, show, replay (also with another body), purge.

import { el, say, text } from "./dom.js";
import { count, counted } from "./format.js";
import { ask } from "./api.js";
import { badge, errorLine, instant, loader, pager, table } from "./parts.js";
import { show as showDialog } from "./dialog.js";
import { changeDeadLetters, replayEdited } from "./changes.js";

const PAGE = 50;

export function show(main, { parameters }, { live, signal }) {
  const chosen = new Set();
  const wrong = errorLine();
  const words = el("p", { class: "said", role: "status" });
  const code = el("input", { type: "text", id: "code", value: parameters.get("code") ?? "", placeholder: "unknown_action", autocomplete: "off" });
  let cursor = null;
  let total = 0;
  const pages = pager((next) => {
    cursor = next;
    chosen.clear();
    loading.now();
  });
  const open = (letter) => read(letter, wrong, changed);
  const shown = table("Dead letters, oldest first", [
    ["Selected", "", (letter) => boxOf(letter, chosen, name)],
    ["ID", "row id", (letter) => el("button", { type: "button", class: "link", on: { click: () => open(letter) } }, letter.id)],
    ["Reason", "", (letter) => el("div", {}, badge(letter.code), " ", letter.error)],
    ["Message", "", (letter) => letter.type ?? letter.original_routing_key],
    ["Dead-lettered", "", (letter) => instant(letter.died_at)],
    ["Size", "number", (letter) => `${count(letter.body_bytes)} B`],
  ], { empty: "No dead letters." });
  const replay = el("button", { type: "button", needs: "POST /dead-letters/replay", on: { click: () => act("replay") } });
  const purge = el("button", { type: "button", class: "danger", needs: "POST /dead-letters/purge", on: { click: () => act("purge") } });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/dead-letters", { query: { code: code.value.trim(), limit: PAGE, cursor }, signal: mine });
    total = page.total;
    shown.update(page.items);
    pages.update(page.next_cursor, null);
    text(words, total ? `${counted(total, "dead letter")} in total` : "");
    for (const button of [replay, purge]) button.disabled = total === 0;
    name();
  }, { every: 1000, signal, wrong });

  /** Return what the buttons act on: the selected messages, those with the error code, or all. */
  function target() {
    if (chosen.size) return [{ ids: [...chosen] }, counted(chosen.size, "selected message")];
    const reason = code.value.trim();
    return reason ? [{ code: reason }, `all messages with the code ${reason}`] : [{ all: true }, `all ${counted(total, "message")}`];
  }
  function name() {
    const scope = chosen.size ? `${chosen.size} selected` : code.value.trim() ? "all with this code" : "all";
    text(replay, `Replay ${scope}`);
    text(purge, `Purge ${scope}`);
  }
  async function act(verb) {
    const [selection, subject] = target();
    if (await changeDeadLetters(verb, selection, subject)) await changed();
  }
  async function changed() {
    chosen.clear();
    cursor = null;
    pages.reset();
    say("Done");
    await loading.now();
  }
  code.addEventListener("change", () => {
    cursor = null;
    chosen.clear();
    pages.reset();
    loading.now();
  });
  // What is selected stays in its place: the list is not reloaded meanwhile.
  live.on("overview", () => pages.isFirst() && chosen.size === 0 && loading.soon(), signal);
  live.on("opening", loading.soon, signal);
  name();
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Dead letters"),
      el("div", { class: "field search" }, el("label", { for: "code" }, "Error code"), code),
      el("div", { class: "buttons" }, el("button", { type: "button", on: { click: () => loading.now() } }, "Refresh"), replay, purge)),
    wrong, words, shown.node, pages.node);
  loading.now();
}

function boxOf(letter, chosen, selected) {
  const box = el("input", { type: "checkbox", "aria-label": `Select ${letter.id}`, checked: chosen.has(letter.id) });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(letter.id);
    else chosen.delete(letter.id);
    selected();
  });
  return box;
}

async function read({ id }, wrong, changed) {
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
  const edit = el("button", { type: "button", needs: "POST /dead-letters/replay", on: { click: async (event) => {
    event.target.closest("dialog").close();
    if (await replayEdited(letter)) await changed();
  } } }, "Edit and replay");
  showDialog(`Dead letter ${id}`, el("p", {}, badge(letter.code), " ", letter.error),
    el("dl", { class: "metrics" }, facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)))),
    el("h3", {}, bodyTitle(letter)), canBeEdited(letter) ? edit : null, el("pre", { tabindex: 0, "aria-label": "Body" }, letter.body),
    el("h3", {}, "Headers"), el("pre", { tabindex: 0, "aria-label": "Headers" }, JSON.stringify(letter.headers, null, 2)));
}

/** Whether the body is text and is shown completely. */
function canBeEdited({ body, body_encoding: encoding, body_bytes: bytes }) {
  return encoding === "text" && new TextEncoder().encode(body).length === bytes;
}

function bodyTitle({ body_encoding: encoding, body_truncated: truncated }) {
  const title = encoding === "text" ? "Body" : "Body, in base64";
  return truncated ? `${title} (only the beginning is stored)` : title;
}
