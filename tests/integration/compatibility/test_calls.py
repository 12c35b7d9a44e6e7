"""Old services on a new protocol: every call of a service that may run beside this version still works.

`calls.sql` lists them. A function may get parameters with defaults, a row may get fields, and nothing
else may change.
"""

import ast
import re
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

_RECORD = Path(__file__).with_name("calls.sql")
_ROOT = Path(__file__).parents[3]
_WIDTH = 100
_FOLD = "\n--   "
_LINE = rf".*(?:{_FOLD}.*)*"
_BLOCK = re.compile(
    rf"-- takes ?(?P<takes>{_LINE})\n-- gives ?(?P<gives>{_LINE})\n(?P<statement>[^-;][^;]*);"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One statement, the types of its parameters, and its columns with their types."""

    statement: str
    takes: tuple[str, ...]
    gives: frozenset[str]

    def __str__(self) -> str:
        """Return the call in the form of `calls.sql`."""
        takes = f"-- takes {', '.join(self.takes)}".rstrip()
        gives = f"-- gives {', '.join(sorted(self.gives))}"
        head = "\n".join(_FOLD.join(textwrap.wrap(line, _WIDTH)) for line in (takes, gives))
        return f"{head}\n{self.statement};\n"


def _recorded() -> list[Call]:
    return [
        Call(
            statement=" ".join(block["statement"].split()),
            takes=tuple(_listed(block["takes"])),
            gives=frozenset(_listed(block["gives"])),
        )
        for block in _BLOCK.finditer(_RECORD.read_text())
    ]


def _listed(text: str) -> list[str]:
    return [item for item in text.replace(_FOLD, " ").split(", ") if item]


async def _understood(connection: "asyncpg.Connection[asyncpg.Record]", statement: str) -> Call:
    prepared = await connection.prepare(statement)
    return Call(
        statement=statement,
        takes=tuple(_type(parameter) for parameter in prepared.get_parameters()),
        gives=frozenset(f"{column.name} {_type(column.type)}" for column in prepared.get_attributes()),
    )


def _type(found: asyncpg.Type) -> str:
    return found.name if found.schema == "pg_catalog" else f"{found.schema}.{found.name}"


def statements_of(service: str) -> Iterator[str]:
    """Return the statements in the code of a service that call the protocol."""
    for file in sorted((_ROOT / service).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.search(r"SELECT\b.*\bturnstile\.\w+\(", node.value, re.DOTALL)
            ):
                yield " ".join(node.value.split())


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def test_every_recorded_call_has_its_parameters_and_at_least_its_columns(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    recorded = _recorded()
    assert len(recorded) > 20
    for call in recorded:
        now = await _understood(connection, call.statement)
        assert now.takes == call.takes, call.statement
        assert not call.gives - now.gives, call.statement


async def test_every_call_of_the_services_and_every_row_type_is_recorded(
    connection: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    recorded = {call.statement for call in _recorded()}
    calls = [
        await _understood(connection, statement)
        for service in ("common", "executor", "worker")
        for statement in statements_of(service)
    ]
    rows = {
        f"SELECT (NULL::{name}).*"
        for call in calls
        for name in re.findall(r"turnstile\.\w+", " ".join(call.gives))
    }
    calls += [await _understood(connection, statement) for statement in sorted(rows)]
    missing = [str(call) for call in calls if call.statement not in recorded]
    assert not missing, "add to calls.sql:\n\n" + "\n".join(missing)
