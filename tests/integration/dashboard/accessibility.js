// Returns what axe leaves out: a page that scrolls sideways, tables without a caption, and the parts that each page has.
() => {
  const faults = [];
  const visible = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const fault = (rule, node) => faults.push(`${rule}: ${node ? node.outerHTML.slice(0, 200) : ""}`);

  for (const landmark of ["header", "nav", "main"]) if (!document.querySelector(landmark)) fault(`no ${landmark}`);
  if (!document.querySelector("[aria-live], [role=status]")) fault("no live region");
  for (const node of document.querySelectorAll("table")) {
    if (!visible(node)) continue;
    if (!node.querySelector("caption")?.textContent.trim()) fault("a table without a caption", node);
    if ([...node.querySelectorAll("th")].some((cell) => !cell.scope)) fault("a header cell without a scope", node);
  }
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) fault("the page scrolls sideways");
  return faults;
}
