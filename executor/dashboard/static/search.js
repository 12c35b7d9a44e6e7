// The search field of every screen, and the keyboard: one field for an id, an action, a key or an error.

import { el, text } from "./dom.js";
import { ask, queryOf } from "./api.js";
import { show as showDialog } from "./dialog.js";
import { queueLink } from "./parts.js";
import { Problem } from "./problem.js";

const ID = /^#?([1-9]\d{0,18})$/;
const GO_MILLISECONDS = 1500;
/** The second key after g. */
const GOES = { h: ["Home", "#/"], q: ["Queues", "#/queues"], e: ["Executions", "#/executions"],
  r: ["Resources", "#/resources"], w: ["Workers", "#/workers"], a: ["Admin", "#/dead-letters"] };
const KEYS = [["/", "Search"], ["?", "Show these shortcuts"],
  ...Object.entries(GOES).map(([key, [name]]) => [`g ${key}`, `Open ${name}`]),
  ["Esc", "Close a dialog, or leave the search"]];

/** The form for the header. */
export function searchField() {
  const input = el("input", { type: "search", id: "find", name: "find", autocomplete: "off",
    spellcheck: "false", "aria-label": "Search by #id, action, key or error",
    placeholder: "#id, action, key or error" });
  const wrong = el("span", { class: "wrong", role: "alert" });
  async function submit(event) {
    event.preventDefault();
    const words = input.value.trim();
    if (!words) return;
    try {
      text(wrong, "");
      location.hash = await addressOf(words);
      input.blur();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      text(wrong, error.message);
    }
  }
  return el("form", { class: "find", role: "search", on: { submit } }, input, wrong);
}

/** Where a text leads: `#id` to an execution; to the queues that match; else to the errors that have it. */
async function addressOf(words) {
  const [, id] = ID.exec(words) ?? [];
  if (id && words.startsWith("#")) return `#/executions/${id}`;
  const { items, total } = await ask("GET", "/queues", { query: { search: words, limit: 2 } });
  const exact = items.find((each) => each.action_ref === words && each.concurrency_key === null);
  if (exact || total === 1) return queueLink(exact ?? items[0]);
  if (total > 0) return `#/queues${queryOf({ search: words })}`;
  return id ? `#/executions/${id}` : `#/executions${queryOf({ error: words })}`;
}

/** Listen for the shortcuts, which are off while one types or a dialog is open. */
export function listenForKeys(field) {
  let goesUntil = 0;
  addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (isTyping?.id === "find" && event.key === "Escape") isTyping.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || document.querySelector("dialog[open]"))
      return;
    const go = performance.now() < goesUntil && GOES[event.key];
    goesUntil = event.key === "g" ? performance.now() + GO_MILLISECONDS : 0;
    if (go) location.hash = go[1];
    else if (event.key === "/") field.querySelector("input").focus();
    else if (event.key === "?") showShortcuts();
    else return;
    event.preventDefault();
  });
}

function showShortcuts() {
  showDialog("Keyboard shortcuts", el("dl", { class: "keys" }, KEYS.map(([keys, words]) =>
    el("div", {}, el("dt", {}, keys.split(" ").map((key) => el("kbd", {}, key))), el("dd", {}, words)))));
}
