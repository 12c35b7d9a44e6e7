// A menu: a button that opens a card with buttons and links, above all else, so that no table cuts it.

import { button, el } from "./dom.js";

/**
 * The button "⋯" and its card. `label` names it for screen readers; `items` are [words, do, attributes], or
 * nodes. What is done may open a dialog, so the menu closes first and the focus returns to its button.
 */
export function menu(label, items) {
  const id = `menu-${encodeURIComponent(label)}`;
  const card = () => document.getElementById(id);
  const place = ({ newState }) => {
    if (newState !== "open") return;
    const { bottom, top, right } = card().previousElementSibling.getBoundingClientRect();
    const { offsetHeight: height, offsetWidth: width } = card();
    const below = bottom + height <= innerHeight ? bottom : Math.max(0, top - height);
    card().style.inset = `${below}px auto auto ${Math.max(0, right - width)}px`;
  };
  return el("span", { class: "menu" },
    button("⋯", null, { popovertarget: id, "aria-label": label, title: label }),
    el("span", { id, popover: "auto", role: "group", "aria-label": label, on: { toggle: place } },
      items.filter(Boolean).map((item) => (Array.isArray(item) ? itemOf(item, card) : item))));
}

function itemOf([words, act, more], card) {
  return button(words, () => {
    card().hidePopover();
    act();
  }, more);
}

/** A card does not follow its button. */
addEventListener("scroll", () => document.querySelector(".menu :popover-open")?.hidePopover(),
  { capture: true, passive: true });
