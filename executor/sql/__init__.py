"""The reading statements of the executor service that are written in SQL; each sees one snapshot of the rows.

They only read: every write is a statement of `common.sql`. A file holds the statements of one subject; each
begins with a line `-- name: what it returns`. `executor.history.selects` builds those with a filter.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

_HEAD: Final = re.compile(r"^-- (\w+): ", re.MULTILINE)


def query(name: str) -> str:
    """Return the text of the statement with this name."""
    return _statements()[name]


@cache
def _statements() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for file in resources.files("turnstile.executor.sql").iterdir():
        if not file.name.endswith(".sql"):
            continue
        for name, text in named_statements(file.read_text(encoding="utf-8")).items():
            assert name not in found, f"{name} is defined twice"
            found[name] = text
    return found


def named_statements(text: str) -> Mapping[str, str]:
    """Return the statements of one file by name."""
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {head[1]: text[head.start() : end].rstrip() for head, end in zip(heads, ends, strict=True)}
