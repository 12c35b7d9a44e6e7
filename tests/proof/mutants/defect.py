"""One planted bug: a few characters of the product changed, and the tests that must detect it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault: `after` in place of `before`, which occurs exactly once in the file."""

    name: str
    """What is wrong, in the words of a bug report."""
    file: str
    before: str
    after: str
    caught_by: str
    """The test (a pytest node id) that must fail."""

    def fits(self, tree: Path) -> bool:
        """Return whether `before` occurs exactly once."""
        return (tree / self.file).read_text(encoding="utf-8").count(self.before) == 1

    @contextmanager
    def planted(self, tree: Path) -> Iterator[None]:
        """Change the file in `tree` for as long as the block lasts."""
        assert self.fits(tree), f"{self.name}: not exactly one match in {self.file}"
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(text, encoding="utf-8")
