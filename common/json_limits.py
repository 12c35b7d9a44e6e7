"""Reads JSON documents within a bound on nesting and on the length of integers.

A result is nested deeper in a message than by itself, and deeper again in a page, and readers of JSON have a
maximum depth. Both services keep one bound: the worker accepts no result beyond it, and the executor leaves
out what exceeds it in the database, whichever process wrote it (P4).
"""

from typing import Any, Final

from pydantic_core import from_json

LEVELS_MAX: Final = 196
"""Levels of lists and objects in one document; a message or page may add four more around it."""
DIGITS_MAX: Final = 4300
"""Digits of an integer: Python's own bound against slow conversions."""


def read_document(text: str | bytes) -> Any:
    """Return the value of JSON text; raises ValueError with the reason and a remedy."""
    if len(text) <= 2 * LEVELS_MAX:
        return from_json(text)
    content = text.encode() if isinstance(text, str) else text
    try:
        # Read inside the levels that may be around it.
        return from_json(b"[[[[" + content + b"]]]]")[0][0][0][0]
    except ValueError as error:
        raise ValueError(explain_json_error(error)) from None


def readable(text: str | None, *, otherwise: Any = None) -> Any:
    """Return the value of a document, or `otherwise` where it is None or exceeds the bound."""
    if text is None:
        return otherwise
    try:
        return read_document(text)
    except ValueError:
        return otherwise


def explain_json_error(error: ValueError) -> str:
    """Return the error of `from_json` in terms of the document, with a remedy."""
    reason = str(error)
    if reason.startswith("recursion limit exceeded"):
        return f"it is nested deeper than {LEVELS_MAX} levels; make it flatter, or a string that holds JSON"
    if reason.startswith("number out of range"):
        return f"it contains an integer of more than {DIGITS_MAX} digits; give it as a string"
    return reason
