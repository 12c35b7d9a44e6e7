"""The template database of a test session: the schema, as `executor migrate` creates it."""

import asyncio


def prepare(url: str) -> None:
    """Bring an empty database to the newest schema."""
    # Imported here, so that tests of packages without a database do not load the migrations.
    from turnstile.migrations.run import migrate

    asyncio.run(migrate(url))
