"""The import contracts also hold for what is imported by a string, which import-linter does not see."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
_IMPORTING: Final = ("import_module", "__import__", "find_spec", "LazyCommand")


def _layers() -> list[list[str]]:
    """Return the packages of the contract `services`, highest layer first."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers: Any = next(each["layers"] for each in linter["contracts"] if each["id"] == "services")
    return [[package.strip().removeprefix("turnstile.") for package in each.split("|")] for each in layers]


def _imported_by_name(path: Path) -> Iterator[str]:
    """Yield the packages of ours that a module imports by a string."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_import = isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _IMPORTING
        inside = ast.walk(node) if is_import else (node,)
        for each in inside:
            text = each.value if isinstance(each, ast.Constant) else None
            if isinstance(text, str) and text.startswith("turnstile.") and " " not in text:
                module, colon, _ = text.partition(":")
                if is_import or colon:
                    yield module.split(".")[1]


def test_no_import_by_a_string_leads_where_the_contract_of_the_services_forbids() -> None:
    layers, found = _layers(), set()
    for number, layer in enumerate(layers):
        below = {package for lower in layers[number + 1 :] for package in lower}
        for package in layer:
            for path in sorted((ROOT / package).rglob("*.py")):
                for imported in _imported_by_name(path):
                    found.add((package, imported))
                    assert imported in {package, *below}, f"{path.relative_to(ROOT)}: turnstile.{imported}"
    assert ("executor", "executor") in found, "the commands of `executor` are imported by name"
