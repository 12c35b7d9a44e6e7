"""The classes of the reading side describe the tables and views of the database."""

import asyncpg

from turnstile.executor.history.views import VIEWS

_COLUMNS = """
SELECT column_name, CASE WHEN data_type = 'USER-DEFINED' THEN 'text' ELSE data_type END AS type
FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2
"""
_TYPES = {
    "BIGINT": "bigint", "SMALLINT": "smallint", "INTEGER": "integer", "FLOAT": "double precision",
    "TEXT": "text", "JSONB": "jsonb", "DATETIME": "timestamp with time zone",
}  # fmt: skip
"""Names of SQLAlchemy's types, and those of PostgreSQL. An enum is read as text."""


async def test_every_column_of_a_class_is_one_of_its_table_or_view_with_that_type(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for view in VIEWS:
            table = vars(view)["__table__"]
            rows = await connection.fetch(_COLUMNS, table.schema, table.name)
            found = {row["column_name"]: row["type"] for row in rows}
            described = {each.name: _TYPES[str(each.type)] for each in table.columns}
            assert described.items() <= found.items(), table.fullname
    finally:
        await connection.close()
