"""Writes the pages of the reference from the code, so that they cannot lag behind it.

In: settings, commands, routes, definitions, as the program itself has them. Out: Markdown files in a folder
that is not under version control. Next: one module per page.
"""

from pathlib import Path

from generate import actions, commands, python, routes, settings, states

_PAGES = {
    "settings": settings.page,
    "commands": commands.page,
    "http": routes.page,
    "actions": actions.page,
    "states": states.page,
    "python": python.page,
}


def write_reference(folder: Path) -> None:
    """Write every page that is not there yet as it should be; leave the rest alone, for quick rebuilds."""
    folder.mkdir(exist_ok=True)
    for name, page in _PAGES.items():
        file, text = folder / f"{name}.md", page()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
