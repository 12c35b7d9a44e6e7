"""Checks a page with axe-core: as wide as a desktop, as a phone, and in dark.

In: a page that shows its content. Out: what a screen reader, a keyboard or a reader with weak sight could not
use, one line for each fault. What axe leaves out is in accessibility.js.
"""

from importlib import resources
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page

_AXE: Final = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
_MORE: Final = (Path(__file__).parent / "accessibility.js").read_text()
_DESKTOP: Final = {"width": 1280, "height": 800}
_PHONE: Final = {"width": 360, "height": 740}
# A width changes only where things are, how large, and what is folded; a scheme changes only colours.
_LOOKS: Final[tuple[tuple[str, Any, Any, dict[str, Any]], ...]] = (
    ("light", "light", _DESKTOP, {"rules": {"target-size": {"enabled": True}}}),
    ("phone", "light", _PHONE, {"runOnly": {"type": "rule", "values": ["target-size"]}}),
    ("dark", "dark", _DESKTOP, {"runOnly": {"type": "rule", "values": ["color-contrast"]}}),
)
_RUN: Final = """async (options) => {
  const shown = document.querySelector("dialog[open]") ?? document;
  const { violations } = await axe.run(shown, { resultTypes: ["violations"], preload: false, ...options });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${id}: ${help}: ${node.html.slice(0, 200)}`));
}"""


async def faults_of(page: Page) -> list[str]:
    """Return the faults of the open dialog, or else of the page, each with the look that has it."""
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(_AXE)
    faults = []
    for look, scheme, size, options in _LOOKS:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await page.set_viewport_size(size)
        found = await page.evaluate(_RUN, options)
        if scheme == "light":
            found += await page.evaluate(_MORE)
        faults += [f"{look}: {fault}" for fault in found]
    return faults
