"""Planted bugs: one notation for all proofs, and one table of text beside each (`planted.txt`).

    [what finds the bugs below it]
    what is wrong
        where: right => wrong

A bug has one change of source text or several; in it `\\n` is the end of a line. A long change goes on in the
next line, which begins with `=>`. What comes before `where` and inside the brackets means, the proof says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Change(NamedTuple):
    """A wrong piece of text in place of a right one."""

    where: str
    right: str
    wrong: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """One deliberate fault."""

    name: str
    """What is wrong, in the words of a bug report."""
    found_by: str
    changes: tuple[Change, ...]


def planted_bugs(proof: str) -> tuple[PlantedBug, ...]:
    """Return the table of one proof."""
    return tuple(_read((ROOT / "tests" / "proof" / proof / "planted.txt").read_text(encoding="utf-8")))


def changed(source: str, changes: tuple[Change, ...]) -> str:
    """Return a text with a bug; what is right in each change occurs once in it."""
    for change in changes:
        assert source.count(change.right) == 1, f"{change.right!r} occurs {source.count(change.right)} times"
        source = source.replace(change.right, change.wrong)
    return source


def _read(text: str) -> Iterator[PlantedBug]:
    bug: PlantedBug | None = None
    found_by = ""
    for line in text.replace("\n        =>", " =>").splitlines():
        if line.startswith("    ") and bug is not None:
            where, _, change = line.strip().partition(": ")
            right, _, wrong = change.replace("\\n", "\n").partition(" =>")
            bug = replace(bug, changes=(*bug.changes, Change(where, right, wrong.removeprefix(" "))))
        elif line.startswith("["):
            found_by = line[1:-1]
        elif line and not line.startswith("#"):
            if bug is not None:
                yield bug
            bug = PlantedBug(name=line, found_by=found_by, changes=())
    if bug is not None:
        yield bug
