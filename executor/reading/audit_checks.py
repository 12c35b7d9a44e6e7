"""The checks of the audit, as they stand in the files `executor.sql` / `audit_*.sql`.

In: statements, each under a line `-- check <name> of <what an id names>: <what must hold>`, ended by `;`.
Out: groups of named checks, each group one statement, so that what its checks share is read once. Next:
`audit` runs them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from turnstile.executor.sql import query

_HEAD: Final = re.compile(r"^-- check (?P<name>\w+) of (?P<subject>\w+): (?P<says>.+)$", re.MULTILINE)
_LIVE: Final = ("audit_queues", "audit_live", "audit_links")
_RECORD: Final = ("audit_record",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold for every row that it looks at."""

    name: str
    says: str
    subject: str
    """What its ids name: `execution`, `queue` or `action`."""
    statement: str

    def examples(self) -> str:
        """Return the statement that shows the first rows that are wrong."""
        return _framed(query("audit_examples").replace(":check", self.statement))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckGroup:
    """Checks that are asked together."""

    checks: tuple[Check, ...]

    def tally(self) -> str:
        """Return the statement that counts, for each check by name, its rows and those that are wrong."""
        frame = query("audit_tally")
        tallies = (
            frame.replace(":name", f"'{each.name}'").replace(":check", each.statement) for each in self.checks
        )
        return _framed("UNION ALL\n".join(tallies))


@cache
def check_groups(*, record: bool) -> tuple[CheckGroup, ...]:
    """Return the checks of what lives, and with `record` those that read the whole record too."""
    files = (*_LIVE, *_RECORD) if record else _LIVE
    return tuple(CheckGroup(checks=tuple(_read(query(file)))) for file in files)


def _framed(question: str) -> str:
    return query("audit_frame").replace(":question", question)


def _read(text: str) -> Iterator[Check]:
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        statement, _, _ = text[head.end() : end].partition(";\n")
        yield Check(name=head["name"], says=head["says"], subject=head["subject"], statement=statement)
