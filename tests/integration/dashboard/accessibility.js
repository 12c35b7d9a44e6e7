// Returns what a screen reader or a keyboard could not use on this page, and text without enough contrast.
() => {
  const faults = [];
  const visible = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const named = (node) => (node.getAttribute("aria-label") || document.getElementById(node.getAttribute("aria-labelledby"))?.textContent
    || [...(node.labels ?? [])].map((label) => label.textContent).join("") || node.textContent || node.title || "").trim();
  const shown = (node) => `<${node.tagName.toLowerCase()} class="${node.getAttribute("class") ?? ""}"> ${node.textContent.trim().slice(0, 40)}`;
  const fault = (rule, node) => faults.push(`${rule}: ${node ? shown(node) : ""}`);

  if (!document.documentElement.lang) fault("the page has no language");
  if (!document.title.trim()) fault("the page has no title");
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible);
  if (headings.filter((node) => node.tagName === "H1").length !== 1) fault("not exactly one h1");
  headings.reduce((before, node) => {
    const level = Number(node.tagName[1]);
    if (level > before + 1) fault("a heading level is left out", node);
    return level;
  }, 0);
  for (const landmark of ["header", "nav", "main"]) if (!document.querySelector(landmark)) fault(`no ${landmark}`);
  if (!document.querySelector("[aria-live], [role=status]")) fault("no live region");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) fault(`the id ${id} is used twice`);
  for (const node of document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex], [role=slider]")) {
    if (!visible(node) || node.id === "main") continue;
    if (!named(node)) fault("a control without a name", node);
    if (node.tabIndex > 0) fault("a tab order of its own", node);
    if (node.closest("[aria-hidden=true]") && node.tabIndex >= 0) fault("a control that is hidden from screen readers", node);
  }
  for (const node of document.querySelectorAll("[aria-describedby], [aria-labelledby], [aria-controls]")) {
    for (const name of ["aria-describedby", "aria-labelledby", "aria-controls"]) {
      for (const id of (node.getAttribute(name) ?? "").split(/\s+/).filter(Boolean)) {
        if (!document.getElementById(id)) fault(`${name} names the missing ${id}`, node);
      }
    }
  }
  for (const node of document.querySelectorAll("svg, img")) {
    if (visible(node) && !node.closest("[aria-hidden=true]") && !named(node) && node.getAttribute("alt") === null) fault("a picture without a name", node);
  }
  for (const node of document.querySelectorAll("table")) {
    if (!visible(node)) continue;
    if (!node.querySelector("caption")?.textContent.trim()) fault("a table without a caption", node);
    if ([...node.querySelectorAll("th")].some((cell) => !cell.scope)) fault("a header cell without a scope", node);
  }
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth) fault("the page scrolls sideways");

  const parsed = (colour) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([r, g, b, a], [r2, g2, b2]) => [r * a + r2 * (1 - a), g * a + g2 * (1 - a), b * a + b2 * (1 - a), 1];
  const ground = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement) {
      const layer = parsed(getComputedStyle(each).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !visible(node) || node.closest(".spoken, .skip, :disabled, [aria-disabled=true]")) continue;
    const style = getComputedStyle(node);
    const below = ground(node);
    const [light, dark] = [luminance(over(parsed(style.color), below)), luminance(below)].sort((one, other) => other - one);
    const ratio = (light + 0.05) / (dark + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) fault(`contrast ${ratio.toFixed(2)}`, node);
  }
  return faults;
}
