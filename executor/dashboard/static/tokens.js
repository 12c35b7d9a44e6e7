// The screen of API tokens: role, scope, expiry, last use; revoke.

import { button, el } from "./dom.js";
import { auditLogOf } from "./audit_log.js";
import { revokeToken } from "./changes.js";
import { list } from "./list.js";
import { badge, head, instant, none, resultLine } from "./parts.js";
import { table } from "./table.js";

export function show(main, address, context) {
  const result = resultLine({ changed: () => tokens.now() });
  const revoke = (token) => result.run(async () => (await revokeToken(token)
    ? { text: `Token ${token.id} of ${token.name} revoked.`, isComplete: true } : null));
  const shown = table("Tokens, newest first", columnsOf(revoke),
    { empty: "No tokens in the database. Create one with: executor tokens create NAME --role admin" });
  const tokens = list(address, context, { path: "tokens", table: shown });
  main.append(
    head("Tokens"),
    el("p", { class: "said" }, "Tokens of the setting TURNSTILE_API_TOKENS are not listed: they are in the "
      + "configuration of the executors."),
    tokens.wrong, result.node, ...tokens.nodes, auditLogOf({ subject_kind: "token" }, context.signal));
  tokens.now();
}

function columnsOf(revoke) {
  return [
    ["Name", "row", ({ name, id }) => [name, el("span", { class: "id" }, `token ${id}`)]],
    ["State", "", ({ state }) => badge(state)],
    ["Role", "", ({ role }) => role],
    ["Scope", "", ({ scope }) => (scope === null ? "all actions"
      : scope.map((prefix) => el("code", { class: "pair" }, `${prefix}*`)))],
    ["Expires", "", ({ expires_at: at }) => (at === null ? none("never") : instant(at))],
    ["Last used", "", ({ last_used_at: at }) => (at === null ? none("not yet") : instant(at))],
    ["Created", "", ({ created_at: at, created_by: by }) => atBy(at, by)],
    ["Revoked", "", ({ revoked_at: at, revoked_by: by }) => (at === null ? none("–") : atBy(at, by))],
    ["Actions", "does", (token) => token.state === "valid" && button("Revoke", () => revoke(token), {
      class: "danger", needs: "DELETE /tokens/{token_id}",
      "aria-label": `Revoke token ${token.id} of ${token.name}`,
    })],
  ];
}

function atBy(at, by) {
  return el("div", {}, instant(at), by && ` by ${by}`);
}
