"""One planted bug: a few characters of the product changed, and the tests that must detect it."""

import re
from dataclasses import dataclass
from pathlib import Path

_TOKEN = re.compile(r"\w+|[^\w\s]")
_COMMENT = re.compile(r"(--|#) .*")
_GAP = r"(?:\s|--.*\n|#.*\n)"
_CLOSING = {")", "]", "}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A deliberate fault: `after` in place of `before`, which occurs exactly once in the file.

    White space, line breaks, comments and trailing commas do not matter: a reformatted file still matches.
    """

    name: str
    """What is wrong, in the words of a bug report."""
    file: str
    before: str
    after: str
    caught_by: tuple[str, ...]
    """Tests (pytest node ids) of which at least one must fail."""

    def plant(self, tree: Path) -> None:
        """Change the file in `tree`."""
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        found = self._matches(text)
        assert len(found) == 1, f"{self.name}: {len(found)} matches in {self.file}, expected one"
        start, end = found[0].span()
        file.write_text(text[:start] + self._indented_after(text[:start]) + text[end:], encoding="utf-8")

    def fits(self, text: str) -> bool:
        """Return whether `before` occurs exactly once."""
        return len(self._matches(text)) == 1

    def _matches(self, text: str) -> list[re.Match[str]]:
        return list(re.finditer(_pattern(self.before), text))

    def _indented_after(self, text_before: str) -> str:
        """Return `after` with the indentation of the line that it replaces."""
        after = self.after.rstrip("\n")
        written = len(after) - len(after.lstrip(" "))
        line = text_before[text_before.rfind("\n") + 1 :]
        indentation = line if line.isspace() else ""
        lines = [line[written:] if line[:written].isspace() else line for line in after.split("\n")]
        return f"\n{indentation}".join(lines)


def _pattern(text: str) -> str:
    """Return a pattern of the tokens of `text`, with any white space and comments between them."""
    tokens = _TOKEN.findall(_COMMENT.sub("", text))
    tokens = [
        token
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True)
        if token != "," or following not in _CLOSING
    ]
    pattern, previous = "", ""
    for token in tokens:
        between = f"{_GAP}+" if _is_word(previous) and _is_word(token) else f"{_GAP}*"
        comma = f",?{_GAP}*" if token in _CLOSING else ""
        pattern += (between if previous else "") + comma + re.escape(token)
        previous = token
    start = r"(?<!\w)" if _is_word(tokens[0]) else ""
    return start + pattern + (r"(?!\w)" if _is_word(previous) else "")


def _is_word(token: str) -> bool:
    return token.isidentifier() or token.isalnum()
