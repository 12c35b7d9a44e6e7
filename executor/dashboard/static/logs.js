// The logs of an execution, followed while it runs.

import { el, text } from "./dom.js";
import { ask } from "./api.js";
import { errorLine } from "./parts.js";
import { Problem } from "./problem.js";

const EVERY_MILLISECONDS = 1500;
const SHOWN_CHARS = 500000;

export function logPart(id, signal) {
  const wrong = errorLine();
  const shown = el("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Logs",
    "aria-live": "off" });
  const empty = el("p", { class: "empty" }, "No log output.");
  const node = el("section", {}, el("h2", {}, "Logs"), wrong, empty, shown);
  shown.hidden = true;
  let cursor = null;
  let attempt = 0;
  let ended = false;
  let reading = false;

  async function read() {
    if (reading || ended || signal.aborted) return;
    reading = true;
    try {
      for (let more = true; more && !ended;) {
        const page = await ask("GET", `/executions/${id}/logs`, { query: { cursor }, signal });
        page.items.forEach(add);
        more = page.items.length > 0 && page.next_cursor !== null;
        cursor = page.next_cursor ?? cursor;
        ended = page.ended;
      }
      text(wrong, "");
    } catch (error) {
      if (!(error instanceof Problem)) {
        if (!signal.aborted) throw error;
      } else text(wrong, error.message);
    } finally {
      reading = false;
    }
  }

  function add(piece) {
    const follows = shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 4;
    if (piece.attempt !== attempt) {
      attempt = piece.attempt;
      shown.append(el("strong", {},
        `${shown.textContent && !shown.textContent.endsWith("\n") ? "\n" : ""}Attempt ${attempt}\n`));
    }
    shown.append(piece.text);
    while (shown.textContent.length > SHOWN_CHARS) shown.firstChild.remove();
    shown.hidden = false;
    empty.hidden = true;
    if (follows) shown.scrollTop = shown.scrollHeight;
  }

  const ticking = setInterval(() => !document.hidden && node.dataset.over !== "true" && read(),
    EVERY_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(ticking));
  return {
    node,
    update(over) {
      const before = node.dataset.over;
      node.dataset.over = over;
      if (before !== String(over)) read();
    },
  };
}
