"""Reads the documents of the record, up to a depth and a length of numbers that whoever is told can read too.

A result stands deeper in a message, and deeper still in a page, than by itself, and readers of JSON end
at some depth. Both services hold to one bound: the worker takes no result beyond it, and the executor leaves
out what stands beyond it in the record, whoever wrote it there (P4).
"""

from typing import Any, Final

from pydantic_core import from_json

LEVELS_MAX: Final = 196
"""Levels of lists and objects in one document; a message or page may put four more about it."""
DIGITS_MAX: Final = 4300
"""Digits of an integer: Python's own bound against slow conversions."""


def read_document(text: str | bytes) -> Any:
    """Return the value of a text that is JSON; raises ValueError with the reason and a remedy."""
    if len(text) <= 2 * LEVELS_MAX:
        return from_json(text)
    content = text.encode() if isinstance(text, str) else text
    try:
        # Read in what may stand about it.
        return from_json(b"[[[[" + content + b"]]]]")[0][0][0][0]
    except ValueError as error:
        raise ValueError(reason_unread(error)) from None


def readable(text: str | None, *, otherwise: Any = None) -> Any:
    """Return the value of a document, or `otherwise` where there is none or nobody could read it."""
    if text is None:
        return otherwise
    try:
        return read_document(text)
    except ValueError:
        return otherwise


def reason_unread(error: ValueError) -> str:
    """Return what `from_json` says, in the words of whoever wrote the document."""
    reason = str(error)
    if reason.startswith("recursion limit exceeded"):
        return f"it is nested deeper than {LEVELS_MAX} levels; make it flatter, or a string that holds JSON"
    if reason.startswith("number out of range"):
        return f"it contains an integer of more than {DIGITS_MAX} digits; give it as a string"
    return reason
