// Whose token the page uses: its name, role, scope and expiry in the header, and the sign-out.

import { button, el, render } from "./dom.js";
import { ask, signOut } from "./api.js";
import { instant, termsOf } from "./parts.js";
import { setRefused } from "./permissions.js";
import { Problem } from "./problem.js";

const NO_TOKEN = "This installation requires no token: everyone who can reach it may do everything.";
const RETRY_MILLISECONDS = 5000;
let loading = false;

/** Show the identity, again for each new token; let the first link skip to the content, and return that. */
export function showHeader() {
  const [main, node] = ["main", "identity"].map((id) => document.getElementById(id));
  addEventListener("token", () => load(node));
  load(node);
  document.querySelector(".skip").addEventListener("click", (event) => {
    // The link must not change the address, because the fragment says what is shown.
    event.preventDefault();
    main.focus();
  });
  return main;
}

/** Close the card when one goes on elsewhere. */
for (const [name, isElsewhere] of [
  ["click", (card, event) => !card.contains(event.target)],
  ["keydown", (card, event) => event.key === "Escape"],
  ["hashchange", () => true],
]) {
  addEventListener(name, (event) => {
    const card = document.querySelector(".who[open]");
    if (card && isElsewhere(card, event)) card.open = false;
  });
}

async function load(node) {
  if (loading) return;
  loading = true;
  try {
    const identity = await ask("GET", "/whoami");
    setRefused(identity.refused);
    render(node, contentOf(identity));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    setTimeout(() => load(node), RETRY_MILLISECONDS);
  } finally {
    loading = false;
  }
}

function contentOf(identity) {
  if (!identity.token_required) return el("span", { class: "none", title: NO_TOKEN }, "No sign-in");
  const facts = [
    ["Token", identity.name],
    ["Role", identity.role],
    ["Actions", identity.scope === null ? "all" : identity.scope.map((prefix) => `${prefix}*`).join(", ")],
    ["Expires", identity.expires_at === null ? "never" : instant(identity.expires_at)],
  ];
  return el("details", { class: "who" },
    el("summary", {}, el("span", { class: "spoken" }, "Signed in as "), identity.name,
      el("span", { class: "role" }, identity.role)),
    el("div", { class: "card" }, el("dl", {}, termsOf(facts)), button("Sign out", signOut)));
}
