"""The executor service's reading queries, one statement a file; each sees one snapshot of the rows.

They only read: every write is a statement of `common.sql`. Next: `executor.reading` asks them.
"""

from functools import cache
from importlib import resources


@cache
def query(name: str) -> str:
    """Return the text of the query in `<name>.sql`."""
    return resources.files("turnstile.executor.sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
