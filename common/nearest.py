"""Finds the name that a misspelt one was meant to be, for every error and warning about an unknown name.

In: a name from outside and the known names. Out: the nearest of them, or none that is near.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LENGTH_MAX: Final = 100
"""The comparison of longer names would cost more than a typing error is worth."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, whatever its case; None: none is similar."""
    folded = {_folded(each): each for each in sorted(known)}
    found = get_close_matches(_folded(name[:_LENGTH_MAX]), folded, n=1)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?", or an empty text where no known name is near."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found}?"


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
