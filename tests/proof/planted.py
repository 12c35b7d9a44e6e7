"""The notation of planted bugs, one for all proofs: a change of source text, `right => wrong`."""

from typing import Final

_BECOMES: Final = " => "


def parts_of(change: str) -> tuple[str, str]:
    """Return what is right, and what is wrong."""
    right, wrong = change.split(_BECOMES)
    return right, wrong


def changed(source: str, *changes: str) -> str:
    """Return a module's text with a bug; what is right in each change occurs once in it."""
    for change in changes:
        right, wrong = parts_of(change)
        assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times"
        source = source.replace(right, wrong)
    return source
