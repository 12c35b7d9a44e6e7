// Dialogs. They are native, so that the browser handles focus, Escape and the page behind them.

import { button, el, text } from "./dom.js";
import { Problem } from "./problem.js";

/**
 * Show a dialog that asks. `act(form)` makes the change; a Problem is shown in the dialog, which stays open,
 * like `problem` at first. Resolves to whether the change was made. A `required` dialog cannot be closed.
 */
export function confirm({ title, words = [], fields = [], verb, dangerous = false, required = false,
  problem = "", kind = "", act }) {
  return new Promise((resolve) => {
    const wrong = el("p", { class: "wrong", role: "alert" }, problem);
    const go = el("button", { type: "submit", class: dangerous ? "danger" : "primary" }, verb);
    let done = false;
    const submit = async (event) => {
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
    };
    const form = el("form", { method: "dialog", on: { submit } },
      [words].flat().map((line) => el("p", {}, line)), fields, wrong,
      el("div", { class: "buttons" }, !required && button("Close", () => dialog.close()), go));
    const dialog = open(title, kind, [form], () => resolve(done), !required);
    if (required) dialog.addEventListener("cancel", (event) => event.preventDefault());
  });
}

/** Show a dialog that only tells. */
export function show(title, ...content) {
  open(title, "wide", [content, el("form", { method: "dialog", class: "buttons" },
    el("button", { class: "primary" }, "Close"))], () => {});
}

/** A dialog that `ends` with its screen is about that screen: it closes when another address is opened. */
function open(title, kind, content, closed, ends = true) {
  const dialog = el("dialog", { class: kind || null, "aria-labelledby": "dialog-title" },
    el("h2", { id: "dialog-title" }, title), content);
  const leave = () => dialog.close();
  if (ends) addEventListener("hashchange", leave);
  dialog.addEventListener("close", () => {
    removeEventListener("hashchange", leave);
    dialog.remove();
    closed();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** An input with a label and a hint. */
export function field(label, input, hint) {
  const id = `field-${input.name}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return el("div", { class: "field" }, el("label", { for: id }, label), input,
    hint && el("small", { id: `${id}-hint` }, hint));
}
