// Returns what axe leaves out: what scrolls sideways, tables without a caption, cells without a heading,
// and the parts that each page has.
() => {
  const faults = [];
  const visible = (node) =>
    node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const fault = (rule, node) => faults.push(`${rule}: ${node ? node.outerHTML.slice(0, 200) : ""}`);
  const isWider = (node) => node.scrollWidth > node.clientWidth;

  for (const landmark of ["header", "nav", "main"])
    if (!document.querySelector(landmark)) fault(`no ${landmark}`);
  if (!document.querySelector("[aria-live], [role=status]")) fault("no live region");
  for (const node of document.querySelectorAll("table")) {
    if (!visible(node)) continue;
    if (!node.querySelector("caption")?.textContent.trim()) fault("a table without a caption", node);
    const isScoped = [...node.querySelectorAll("th")].every((cell) => cell.scope);
    if (!isScoped) fault("a header cell without a scope", node);
    if (isWider(node.parentElement)) fault("a table scrolls sideways", node);
    // Where rows are cards, the heading of a column is shown in each cell.
    const isCards = !node.tHead || getComputedStyle(node.tHead).position === "absolute";
    const bare = [...node.querySelectorAll("tbody td")].filter((cell) =>
      !cell.dataset.label && cell.textContent.trim() && !cell.querySelector("button"));
    if (isCards) for (const cell of bare) fault("a cell without its heading", cell);
  }
  if (isWider(document.documentElement)) fault("the page scrolls sideways");
  return faults;
}
