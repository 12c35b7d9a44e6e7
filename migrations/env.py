"""Alembic's entry: runs the revisions on the connection that `migrations.run` hands over."""

from alembic import context

from turnstile.common.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=False
)
with context.begin_transaction():
    context.run_migrations()
