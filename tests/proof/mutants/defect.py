"""One planted bug: a few characters of the product changed, and the test that must detect it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.proof.planted import changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault."""

    name: str
    """What is wrong, in the words of a bug report."""
    file: str
    change: str
    caught_by: str
    """The test (a pytest node id) that must fail."""

    @contextmanager
    def planted(self, tree: Path) -> Iterator[None]:
        """Change the file in `tree` for as long as the block lasts."""
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        file.write_text(changed(text, self.change), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(text, encoding="utf-8")
