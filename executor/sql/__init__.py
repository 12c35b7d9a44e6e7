"""The reading statements of the executor service that are written in SQL; each sees one snapshot of the rows.

They only read: every write is a statement of `common.sql`. A file holds the statements of one subject; each
begins with a line `-- name: what it returns`. `executor.queries.statements` builds those with a filter.
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
        text = file.read_text(encoding="utf-8")
        heads = list(_HEAD.finditer(text))
        ends = [head.start() for head in heads[1:]] + [len(text)]
        for head, end in zip(heads, ends, strict=True):
            assert head[1] not in found, f"{head[1]} is defined twice"
            found[head[1]] = text[head.start() : end].rstrip()
    return found
