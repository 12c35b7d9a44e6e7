// The screen of API tokens: role, scope, expiry, last use; revoke.

import { el } from "./dom.js";
import { ask } from "./api.js";
import { auditLogOf } from "./audit_log.js";
import { badge, errorLine, instant, listPages, loader, none, resultLine, table } from "./parts.js";
import { revokeToken } from "./changes.js";

const PAGE = 50;

export function show(main, { parameters }, { live, signal }) {
  const wrong = errorLine();
  const result = resultLine({ changed: () => loading.now() });
  const pages = listPages({ parameters, path: "tokens", reload: () => loading.now() });
  const revoke = (token) => result.run(async () => (await revokeToken(token)
    ? { text: `Token ${token.id} of ${token.name} revoked.`, isComplete: true } : null));
  const shown = table("Tokens, newest first", [
    ["Name", "row", ({ name, id }) => [name, el("span", { class: "id" }, `token ${id}`)]],
    ["State", "", ({ state }) => badge(state)],
    ["Role", "", ({ role }) => role],
    ["Scope", "", ({ scope }) => (scope === null ? "all actions"
      : scope.map((prefix) => el("code", { class: "pair" }, `${prefix}*`)))],
    ["Expires", "", ({ expires_at: at }) => (at === null ? none("never") : instant(at))],
    ["Last used", "", ({ last_used_at: at }) => (at === null ? none("not yet") : instant(at))],
    ["Created", "", ({ created_at: at, created_by: by }) => el("div", {}, instant(at), by && ` by ${by}`)],
    ["Revoked", "", ({ revoked_at: at, revoked_by: by }) => (at === null ? none("–")
      : el("div", {}, instant(at), by && ` by ${by}`))],
    ["Actions", "does", (token) => (token.state !== "valid" ? null : el("button", {
      type: "button", class: "danger", needs: "DELETE /tokens/{token_id}",
      "aria-label": `Revoke token ${token.id} of ${token.name}`,
      on: { click: () => revoke(token) },
    }, "Revoke"))],
  ], { empty: "No tokens in the database. Create one with: executor tokens create NAME --role admin" });
  const loading = loader(async (mine) => {
    const page = await ask("GET", "/tokens",
      { query: { limit: PAGE, cursor: pages.cursor() }, signal: mine });
    shown.update(page.items);
    pages.update(page.next_cursor);
  }, { every: 5000, signal, wrong });
  live.on("opening", loading.soon, signal);
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Tokens")),
    el("p", { class: "said" }, "Tokens of the setting TURNSTILE_API_TOKENS are not listed: they are in the "
      + "configuration of the executors."),
    wrong, result.node, shown.node, pages.node, auditLogOf({ subject_kind: "token" }, signal));
  loading.now();
}
