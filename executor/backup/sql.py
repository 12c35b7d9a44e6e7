"""The statements of `restored.sql`."""

from importlib import resources
from typing import Final

from turnstile.executor.sql import named_statements

STATEMENTS: Final = named_statements(
    (resources.files("turnstile.executor.backup") / "restored.sql").read_text(encoding="utf-8")
)
