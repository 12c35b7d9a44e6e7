// The dialog that prompts for a token.

import { el } from "./dom.js";

/** Resolve to the token. The dialog cannot be cancelled, because the API shows nothing without a token. */
export function askForToken(wasRefused) {
  return new Promise((resolve) => {
    const input = el("input", {
      type: "password", id: "token", name: "token", autocomplete: "current-password", required: true,
      "aria-describedby": "token-hint",
    });
    const form = el("form", { method: "dialog" },
      el("h2", { id: "token-title" }, "Token required"),
      wasRefused ? el("p", { class: "wrong", role: "alert" }, "Invalid token. Try another one.") : null,
      el("div", { class: "field" },
        el("label", { for: "token" }, "Token"), input,
        el("small", { id: "token-hint" },
          "A token of this installation (executor tokens create). It is kept until this tab is closed.")),
      el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Continue")));
    const dialog = el("dialog", { "aria-labelledby": "token-title" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.remove();
      // A header can only hold ASCII.
      resolve(input.value.trim().replace(/[^\x21-\x7e]/g, ""));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
