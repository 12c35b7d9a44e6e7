"""What was read of a server, and what a table of checks says about it. Pure.

In: facts by name. Out: one finding for each check of a table, in its order. A check whose facts are missing
is not checked, and its sentence says why.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Status: TypeAlias = Literal["ok", "warning", "failed", "not checked"]
Verdict: TypeAlias = tuple[Status, str]
"""The second part is one sentence; if something is wrong, it ends with the remedy."""


class NotChecked(Exception):
    """Something could not be read; the message says why."""


class Facts(dict[str, Any]):
    """What was read, by name."""

    why_not: str = ""
    """Why the rest was not read."""
    fault: str | None = None
    """Why the server cannot be used, with the remedy."""

    def __missing__(self, name: str) -> Any:
        raise NotChecked(self.why_not)


Check: TypeAlias = Callable[[Facts], Verdict]
Checks: TypeAlias = Mapping[str, Check]


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: Status
    sentence: str


FAILED: Final = "failed"


def judged(checks: Checks, facts: Facts) -> list[Finding]:
    """Return what each check says."""
    return [Finding(name, *_verdict(check, facts)) for name, check in checks.items()]


def _verdict(check: Check, facts: Facts) -> Verdict:
    try:
        return check(facts)
    except NotChecked as missing:
        return "not checked", str(missing)
