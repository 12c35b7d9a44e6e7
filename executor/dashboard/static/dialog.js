// Dialogs. They are native, so that the browser handles focus, Escape and the page behind them.

import { el, text } from "./dom.js";
import { Problem } from "./api.js";

/**
 * Show a confirmation dialog. `act(form)` makes the change; a Problem is shown in the dialog, which stays
 * open. Resolves to whether the change was made.
 */
export function confirm({ title, words, fields = [], verb, dangerous = false, act }) {
  return new Promise((resolve) => {
    const wrong = el("p", { class: "wrong", role: "alert" });
    const go = el("button", { type: "submit", class: dangerous ? "danger" : "primary" }, verb);
    const form = el("form", { method: "dialog" },
      el("h2", { id: "dialog-title" }, title),
      [words].flat().map((line) => el("p", {}, line)),
      fields,
      wrong,
      el("div", { class: "buttons" },
        el("button", { type: "button", on: { click: () => dialog.close() } }, "Close"), go));
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      text(wrong, "");
      try {
        await act(form);
        done = true;
        dialog.close();
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        text(wrong, error.message);
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** An input with a label and a hint. */
export function field(label, input, hint) {
  const id = `field-${input.name}`;
  input.id = id;
  const explained = hint ? el("small", { id: `${id}-hint` }, hint) : null;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input, explained);
}

/** Show a dialog without a form. */
export function show(title, ...content) {
  const dialog = el("dialog", { class: "wide", "aria-labelledby": "dialog-title" },
    el("h2", { id: "dialog-title" }, title), content,
    el("form", { method: "dialog", class: "buttons" }, el("button", { class: "primary" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
