// The logs of an execution, followed while it runs. What is shown is bounded; a download has all that is
// stored.

import { attribute, button, el, say, text } from "./dom.js";
import { ask } from "./api.js";
import { errorLine } from "./parts.js";
import { block } from "./permissions.js";
import { Problem } from "./problem.js";

const EVERY_MILLISECONDS = 1000;
const SHOWN_CHARS = 500000;
const STATES = { live: "Following", paused: "Paused", over: "Complete" };
const NO_CLIPBOARD = "The browser allows this only for a page over https or of this machine.";

/** The part of a screen that shows the logs; `update(isOver)` tells whether the execution has ended. */
export function logPart(id, signal) {
  const wrong = errorLine();
  const state = el("span", { class: "none", role: "status" });
  const cut = el("p", { class: "said", hidden: true }, "The beginning is not shown; a download has it.");
  const empty = el("p", { class: "empty" }, "No log output.");
  // Not spoken line by line: a busy log would leave no other word.
  const shown = el("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Logs",
    "aria-live": "off", hidden: true });
  const pause = button("Pause", () => setPaused(!isPaused));
  const wrap = button("Wrap", () => {
    attribute(wrap, "aria-pressed", String(!shown.classList.toggle("unwrapped")));
  }, { "aria-pressed": "true" });
  const copy = button("Copy", () => attempt(async () => {
    await navigator.clipboard.writeText(shown.textContent);
    say("Copied");
  }));
  const buttons = el("div", { class: "buttons", hidden: true }, pause,
    button("Jump to end", () => { shown.scrollTop = shown.scrollHeight; }), wrap, copy,
    button("Download", () => attempt(download)));
  if (!navigator.clipboard) block(copy, NO_CLIPBOARD);
  let position = start();
  let chars = 0;
  let isPaused = false;
  let isOver = null;
  let isReading = false;

  function describe() {
    text(pause, isPaused ? "Continue" : "Pause");
    pause.hidden = position.ended;
    text(state, STATES[position.ended ? "over" : isPaused ? "paused" : "live"]);
    state.hidden = shown.hidden && !position.ended && isOver !== false;
  }
  function setPaused(wanted) {
    isPaused = wanted;
    describe();
    if (!isPaused) read();
  }
  /** Do what needs the API, and show why it failed. */
  async function attempt(act) {
    try {
      await act();
      text(wrong, "");
    } catch (error) {
      if (!(error instanceof Problem || error instanceof DOMException)) throw error;
      if (!signal.aborted) text(wrong, error.message);
    }
  }
  async function read() {
    if (isReading || isPaused || position.ended || signal.aborted) return;
    isReading = true;
    await attempt(() => pieces(id, position, add, signal, () => isPaused)).finally(() => {
      isReading = false;
    });
    describe();
  }
  function add(words) {
    const follows = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 4;
    shown.hidden = buttons.hidden = false;
    empty.hidden = true;
    shown.append(words);
    for (chars += words.length; chars > SHOWN_CHARS && shown.childNodes.length > 1; cut.hidden = false) {
      chars -= shown.firstChild.length;
      shown.firstChild.remove();
    }
    if (follows) shown.scrollTop = shown.scrollHeight;
  }
  /** Save all that is stored now: more than the page shows. */
  async function download() {
    const stored = [];
    await pieces(id, start(), (words) => stored.push(words), signal);
    const href = URL.createObjectURL(new Blob(stored, { type: "text/plain" }));
    el("a", { href, download: `execution-${id}.log` }).click();
    URL.revokeObjectURL(href);
  }

  // The last pieces may come after the end: it is read until the API says that nothing follows.
  const ticking = setInterval(() => !document.hidden && isOver !== null && read(), EVERY_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(ticking));
  return {
    node: el("section", { class: "logs" },
      el("div", { class: "head" }, el("h2", {}, "Logs ", state), buttons), wrong, cut, empty, shown),
    update(over) {
      if (isOver === over) return;
      isOver = over;
      read();
      describe();
    },
  };
}

function start() {
  return { cursor: null, attempt: 0, ended: false, isAtLineStart: true };
}

/** Call `add(words)` with what follows a position, and move it there; ends early when `stops()`. */
async function pieces(id, position, add, signal, stops = () => false) {
  for (let more = true; more && !position.ended && !stops();) {
    const page = await ask("GET", `/executions/${id}/logs`, { query: { cursor: position.cursor }, signal });
    for (const piece of page.items) {
      if (piece.attempt !== Math.max(position.attempt, 1))
        add(`${position.isAtLineStart ? "" : "\n"}--- attempt ${piece.attempt} ---\n`);
      add(piece.text);
      Object.assign(position, { attempt: piece.attempt, isAtLineStart: piece.text.endsWith("\n") });
    }
    more = page.items.length > 0 && page.next_cursor !== null;
    Object.assign(position, { cursor: page.next_cursor ?? position.cursor, ended: page.ended });
  }
}
