// Settings of concurrency keys, on the screen of a queue: those of one key, or all keys of an action that
// have their own.

import { button, el } from "./dom.js";
import { count } from "./format.js";
import { ask } from "./api.js";
import { actionPath, changeKey, deleteKey, keyOwn } from "./changes.js";
import { loader, pager } from "./list.js";
import { afterChange, errorLine, queueLink, section } from "./parts.js";
import { table } from "./table.js";

const PAGE = 20;
const ROUTE = "/actions/{ref}/keys/{key}";

/**
 * Return the section, and `load()`. With a key it is about this one; without one it is hidden until a key has
 * settings.
 */
export function keySettings(ref, key, signal) {
  const wrong = errorLine();
  let cursor = null;
  const act = (change, message) => afterChange(change, message, loading.now);
  const edit = (own, name, words) => button(words,
    () => act(changeKey(ref, name, own), `Key ${name} changed`),
    { needs: `PUT ${ROUTE}`, "aria-label": `${words} of key ${name}` });
  const remove = (name) => button("Delete",
    () => act(deleteKey(ref, name), `Settings of key ${name} deleted`),
    { class: "danger", needs: `DELETE ${ROUTE}`, "aria-label": `Delete settings of key ${name}` });
  const shown = table("Keys with settings of their own", [
    ["Key", "row", (own) => el("a", { href: queueLink({ ...own, action_ref: ref }) }, own.concurrency_key)],
    ["Limit", "number", limitOf],
    ["Weight", "number", ({ weight }) => count(weight)],
    ["Actions", "does", (own) => [edit(own, own.concurrency_key, "Change"), remove(own.concurrency_key)]],
  ], { keyOf: (each) => each.concurrency_key, empty: "It has the limit of its action, and the weight 1." });
  const pages = pager((next) => {
    cursor = next;
    loading.now();
  });
  const add = key === null ? null : edit(null, key, "Set limit or weight");
  const node = section(key === null ? "Keys with settings of their own" : "Settings of this key",
    wrong, shown.node, pages.node, add);
  node.hidden = true;
  const loading = loader(async (mine) => {
    const page = key === null
      ? await ask("GET", `${actionPath(ref)}/keys`, { query: { limit: PAGE, cursor }, signal: mine })
      : { items: [await keyOwn(ref, key, mine)].filter(Boolean), next_cursor: null };
    shown.update(page.items);
    pages.update(page.next_cursor);
    if (add) add.hidden = page.items.length > 0;
    node.hidden = key === null && page.items.length === 0 && cursor === null;
  }, { every: 5000, signal, wrong });
  return { node, load: loading.soon };
}

function limitOf({ has_limit: hasLimit, max_concurrent: limit }) {
  if (!hasLimit) return "as the action";
  return limit === null ? "no limit" : count(limit);
}
