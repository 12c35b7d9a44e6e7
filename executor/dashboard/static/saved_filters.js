// Filters of a list by name: some that are built in, and those that this browser keeps. Each is a link, so it
// is opened, shared and bookmarked like any other address.

import { button, el, render, say } from "./dom.js";
import { confirm, field } from "./dialog.js";
import { Problem } from "./problem.js";

const SAVED_MAX = 50;

/**
 * The links to the filters of the list at `#/path`. `builtIn` are [name, query] pairs, `now()` returns the
 * query that can be saved.
 */
export function savedFilters(path, builtIn, now) {
  const key = `turnstile.filters.${path}`;
  const node = el("nav", { class: "saved", "aria-label": "Filters" });
  const linkOf = ([name, query]) => el("a", { href: `#/${path}${query}`,
    "aria-current": query === now() && "page" }, name);
  function draw() {
    render(node, el("ul", {}, builtIn.map((each) => el("li", {}, linkOf(each))),
      stored(key).map((each) => el("li", {}, linkOf(each), button("×", () => remove(each[0]),
        { "aria-label": `Remove the filter ${each[0]}`, title: "Remove" })))),
    button("Save this search…", save, { class: "link" }));
  }
  function keep(filters) {
    try {
      localStorage.setItem(key, JSON.stringify(filters));
    } catch {
      throw new Problem(0, "unavailable", "This browser keeps nothing for this page: its storage is full or "
        + "switched off. Bookmark the address instead.");
    }
    draw();
  }
  function remove(name) {
    keep(stored(key).filter(([each]) => each !== name));
    say(`Removed the filter ${name}`);
  }
  function save() {
    const input = el("input", { name: "filter", maxlength: 60, required: true, autocomplete: "off" });
    return confirm({
      title: "Save this search", verb: "Save",
      words: "It is kept in this browser only. To share it, copy the address of the page, which has all of "
        + "it.",
      fields: [field("Name", input, "A filter with this name is replaced.")],
      act: () => {
        const others = stored(key).filter(([each]) => each !== input.value.trim());
        if (others.length >= SAVED_MAX)
          throw new Problem(0, "too_large", `At most ${SAVED_MAX} filters are kept: remove one first.`);
        keep([...others, [input.value.trim(), now()]]);
      },
    });
  }
  draw();
  return { node, draw };
}

/** The kept filters as [name, query] pairs; none where the storage has something else. */
function stored(key) {
  try {
    const found = JSON.parse(localStorage.getItem(key) ?? "[]");
    return found.filter((each) => each.length === 2 && each.every((part) => typeof part === "string"));
  } catch {
    return [];
  }
}
