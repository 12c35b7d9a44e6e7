"""One planted bug: a few characters of the product changed, and the tests that must notice."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault. `before` stands exactly once in the file."""

    name: str
    """What is wrong, as a bug report would say it."""
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]
    """Tests (pytest's node ids) of which at least one must fail."""

    def plant(self, tree: Path) -> None:
        """Change the file in `tree`."""
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        assert self.stands_in(text), f"{self.name}: the text to change stands not once in {self.file}"
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")

    def stands_in(self, text: str) -> bool:
        """Tell whether the text to change is there, once."""
        return text.count(self.before) == 1
