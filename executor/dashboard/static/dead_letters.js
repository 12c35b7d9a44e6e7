// Dead letters: read, send again, throw away. A look holds the letters for a moment, so none is taken by itself.

import { el, say, text } from "./dom.js";
import { clock, count, counted } from "./format.js";
import { ask } from "./api.js";
import { badge, cell, loader, pager, plainRow, table, wrongPlace } from "./parts.js";
import { show as showDialog } from "./dialog.js";
import { deal } from "./changes.js";

const PAGE = 50;

export function show(main, { parameters }, { signal }) {
  const chosen = new Set();
  const wrong = wrongPlace();
  const words = el("p", { class: "said", role: "status" });
  const code = el("input", { type: "text", id: "code", value: parameters.get("code") ?? "", placeholder: "unknown_action", autocomplete: "off" });
  let cursor = null;
  let total = 0;
  const pages = pager((next) => {
    cursor = next;
    chosen.clear();
    loading.now();
  });
  const shown = table("Dead letters, the oldest first", [
    ["Chosen", ""], ["Letter", ""], ["Reason", ""], ["Message", ""], ["Died", ""], ["Size", "number"],
  ], { empty: "None: every message could be used." });
  const replay = el("button", { type: "button", on: { click: () => act("replay") } });
  const purge = el("button", { type: "button", class: "danger", on: { click: () => act("purge") } });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/dead-letters", { query: { code: code.value.trim(), limit: PAGE, cursor }, signal: mine });
    total = page.total;
    shown.update(page.items, (each) => each.fingerprint, plainRow((each) => cells(each, chosen, () => name(), wrong)));
    pages.update(page.next_cursor, null);
    text(words, total ? `${counted(total, "letter")} in all` : "");
    for (const button of [replay, purge]) button.disabled = total === 0;
    name();
  }, { every: 1000, signal, wrong });

  /** What the buttons would do: to those that are chosen, or that died of the reason, or to all. */
  function meant() {
    if (chosen.size) return [{ ids: [...chosen] }, chosen.size === 1 ? "this letter" : `these ${chosen.size} letters`];
    const reason = code.value.trim();
    return reason ? [{ code: reason }, `all that died of ${reason}`] : [{ all: true }, total === 1 ? "the letter" : `all ${count(total)} letters`];
  }
  function name() {
    const said = chosen.size ? `${chosen.size} chosen` : code.value.trim() ? "all of this reason" : "all";
    text(replay, `Send again: ${said}`);
    text(purge, `Throw away: ${said}`);
  }
  async function act(verb) {
    const [selection, said] = meant();
    if (!await deal(verb, selection, said)) return;
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
  name();
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Dead letters"),
      el("div", { class: "field search" }, el("label", { for: "code" }, "Only this reason"), code),
      el("div", { class: "buttons" }, el("button", { type: "button", on: { click: () => loading.now() } }, "Look again"), replay, purge)),
    wrong, words, shown.node, pages.node);
  loading.now();
}

function cells(letter, chosen, changed, wrong) {
  const box = el("input", { type: "checkbox", "aria-label": `Choose ${letter.id}`, checked: chosen.has(letter.fingerprint) });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(letter.fingerprint);
    else chosen.delete(letter.fingerprint);
    changed();
  });
  const open = el("button", { type: "button", class: "link", on: { click: () => read(letter, wrong) } }, letter.id);
  return [
    cell("Chosen", {}, box),
    el("th", { scope: "row", class: "id" }, open),
    cell("Reason", {}, el("div", {}, badge(letter.code), " ", letter.error)),
    cell("Message", {}, letter.type ?? letter.original_routing_key),
    cell("Died", {}, clock(letter.died_at)),
    cell("Size", { class: "number" }, `${count(letter.body_bytes)} B`),
  ];
}

async function read({ fingerprint, id }, wrong) {
  let letter;
  try {
    letter = await ask("GET", `/dead-letters/${encodeURIComponent(fingerprint)}`);
  } catch (error) {
    text(wrong, error.message);
    return;
  }
  const facts = [
    ["Reason", `${letter.code}: ${letter.error}`], ["Goes to", letter.original_routing_key],
    ["Published", clock(letter.published_at)], ["Died", clock(letter.died_at)], ["From", letter.app_id ?? "unknown"],
  ];
  showDialog(`Letter ${id}`,
    el("dl", { class: "figures" }, facts.map(([term, said]) => el("div", {}, el("dt", {}, term), el("dd", {}, said)))),
    el("h3", {}, letter.body_encoding === "text" ? "Body" : "Body, in base64"), el("pre", { tabindex: 0, "aria-label": "Body" }, letter.body),
    el("h3", {}, "Headers"), el("pre", { tabindex: 0, "aria-label": "Headers" }, JSON.stringify(letter.headers, null, 2)));
}
