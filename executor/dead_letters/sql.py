"""The statements of `dead_letters.sql`."""

from importlib import resources
from typing import Final

from turnstile.executor.sql import named_statements

STATEMENTS: Final = named_statements(
    (resources.files("turnstile.executor.dead_letters") / "dead_letters.sql").read_text(encoding="utf-8")
)
