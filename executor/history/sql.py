"""The statements of `history.sql` and `retention.sql`, and those that create the tables of the history."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

from turnstile.executor.sql import named_statements


def statement(name: str) -> str:
    """Return the text of the statement with this name."""
    return _statements()[name]


def tables_text() -> str:
    """Return the statements that create the tables and views of the history, after those of the ledger."""
    return _text("tables.sql")


@cache
def _statements() -> Mapping[str, str]:
    return {**named_statements(_text("history.sql")), **named_statements(_text("retention.sql"))}


def _text(file: str) -> str:
    return (resources.files("turnstile.executor.history") / file).read_text(encoding="utf-8")
