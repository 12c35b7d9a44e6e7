"""Statements that are written in SQL: one file per subject, beside the module that runs them.

Each statement of a file begins with a line `-- name: what it returns`. `executor.history.selects` builds
those with a filter.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

_HEAD: Final = re.compile(r"^-- (\w+): ", re.MULTILINE)


def text_of(file: str) -> str:
    """Return the text of a file; its path is relative to this folder."""
    return (resources.files("turnstile.executor") / file).read_text(encoding="utf-8")


@cache
def statements(file: str) -> Mapping[str, str]:
    """Return the statements of a file by name."""
    text = text_of(file)
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {head[1]: text[head.start() : end].rstrip() for head, end in zip(heads, ends, strict=True)}
