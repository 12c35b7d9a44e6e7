// The dialog that prompts for a token.

import { confirm, field } from "./dialog.js";
import { el } from "./dom.js";

/** Resolve to the token. The dialog cannot be closed, because the API shows nothing without a token. */
export async function askForToken(wasRefused) {
  const input = el("input",
    { type: "password", name: "token", autocomplete: "current-password", required: true });
  await confirm({
    title: "Token required", verb: "Continue", required: true,
    problem: wasRefused ? "Invalid token. Try another one." : "",
    fields: [field("Token", input,
      "A token of this installation (executor tokens create). It is kept until this tab is closed.")],
    act: () => {},
  });
  // A header can only hold ASCII.
  return input.value.trim().replace(/[^\x21-\x7e]/g, "");
}
