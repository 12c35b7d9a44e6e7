"""Create all tables and functions, from the files of the modules that use them.

Revision ID: 0001
"""

from importlib import resources
from typing import Final

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

FILES: Final = (
    ("turnstile.executor.leader", "tables.sql"),
    ("turnstile.executor.leader", "submit.sql"),
    ("turnstile.executor.history", "tables.sql"),
    ("turnstile.executor.webhooks", "tables.sql"),
    ("turnstile.executor.dead_letters", "tables.sql"),
    ("turnstile.executor", "tokens.sql"),
    ("turnstile.executor.permissions", "rights.sql"),
)
"""Package and name of each. Until a version is released, these change in place."""


def upgrade() -> None:
    """Run each file as one script, which only the driver's simple protocol takes."""
    connection = op.get_bind().connection.dbapi_connection
    assert connection is not None
    for package, name in FILES:
        text = (resources.files(package) / name).read_text(encoding="utf-8")
        connection.run_async(lambda driver, text=text: driver.execute(text))
