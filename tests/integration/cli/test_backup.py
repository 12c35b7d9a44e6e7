"""`executor export` and `executor restore-check`: what they refuse, and when they change nothing."""

import asyncio
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import asyncpg
import pytest

from tests.integration.cli.conftest import CommandLines, Ended
from tests.support.ledger import session_on
from turnstile.common.broker.topology import (
    DEAD_LETTERS,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
    EXECUTOR_REPORTS,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.backup.broker import restore_broker
from turnstile.executor.backup.restored import IDS_PER_SECOND, RestoredState, next_id
from turnstile.migrations import origin
from turnstile.migrations.origin import changes_of_origin
from turnstile.migrations.run import migrate

_STATE = """
SELECT jsonb_build_object(
    'sequences', (SELECT jsonb_object_agg(s.sequencename, s.last_value) FROM pg_sequences s),
    'turns', (SELECT jsonb_agg(t) FROM ledger.turn t),
    'action_ids', (SELECT jsonb_agg(a) FROM ledger.action_id a),
    'origin', obj_description('ledger.execution'::regclass, 'pg_class'),
    'executions', (SELECT count(*) FROM ledger.execution)
)::text
"""
_NEXT_ID = "SELECT reserved_id FROM ledger.turn ORDER BY epoch DESC, number DESC LIMIT 1"
_OPEN_TO_ALL = """
SELECT count(*) FROM pg_proc p
WHERE p.pronamespace IN ('ledger'::regnamespace, 'turnstile'::regnamespace)
  AND has_function_privilege('public', p.oid, 'EXECUTE')
"""


@pytest.fixture
def urls(database_url: str, module_urls: tuple[str, str]) -> dict[str, str]:
    """A migrated database, whose origin is that of the template, and the vhost of these tests."""
    return {"TURNSTILE_DATABASE_URL": database_url, "TURNSTILE_AMQP_URL": module_urls[1]}


@pytest.fixture
def unchanged(module_urls: tuple[str, str]) -> dict[str, str]:
    """A database for tests that only read it."""
    return {"TURNSTILE_DATABASE_URL": module_urls[0]}


@pytest.fixture(scope="module")
def dump(module_urls: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a database without executions."""
    file = tmp_path_factory.mktemp("backup") / "a.dump"
    ended = CommandLines(environment={"TURNSTILE_DATABASE_URL": module_urls[0]}).executor("export", str(file))
    assert ended.exit_code == 0, ended.err
    return file


def _value(url: str, query: str, *arguments: Any) -> Any:
    async def read() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    return asyncio.run(read())


def _program(folder: Path, name: str, text: str) -> Mapping[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return {"TURNSTILE_POSTGRESQL_BIN": str(folder)}


def test_a_missing_program_and_one_older_than_the_server_are_refused_with_a_remedy(
    alone: CommandLines, unchanged: dict[str, str], tmp_path: Path
) -> None:
    file, folder = str(tmp_path / "a.dump"), tmp_path / "bin"
    old = _program(folder, "pg_dump", "echo 'pg_dump (PostgreSQL) 9.6.24'")
    refused = alone.executor("export", file, **unchanged, **old)
    assert refused.exit_code == ExitCode.FAILED
    assert "is of PostgreSQL 9, older than the server" in refused.err
    assert "TURNSTILE_POSTGRESQL_BIN=" in refused.err
    (folder / "pg_dump").unlink()
    missing = alone.executor("export", file, **unchanged, **old)
    assert missing.exit_code == ExitCode.FAILED
    assert f"pg_dump was not found in {folder}; install the client programs" in missing.err
    assert list(tmp_path.iterdir()) == [folder]


def test_a_failed_dump_leaves_no_file_and_a_password_is_no_argument(
    alone: CommandLines, unchanged: dict[str, str], tmp_path: Path
) -> None:
    script = (
        'if [ "$1" = --version ]; then echo "pg_dump (PostgreSQL) 99.1"; exit; fi\n'
        'echo "$* with $PGPASSWORD" >&2; exit 1'
    )
    fails = _program(tmp_path / "bin", "pg_dump", script)
    host = urlsplit(unchanged["TURNSTILE_DATABASE_URL"])
    account, _, address = host.netloc.rpartition("@")
    url = host._replace(netloc=f"{account.partition(':')[0]}:s%2Fcret@{address}").geturl()
    ended = alone.executor("export", str(tmp_path / "a.dump"), TURNSTILE_DATABASE_URL=url, **fails)
    assert ended.exit_code == ExitCode.FAILED
    arguments, _, password = ended.err.strip().rpartition(" with ")
    assert password == "s/cret"
    assert "cret" not in arguments
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_backup_is_private_and_replaces_no_file(
    alone: CommandLines, unchanged: dict[str, str], dump: Path
) -> None:
    assert stat.S_IMODE(dump.stat().st_mode) == 0o600
    content = dump.read_bytes()
    again = alone.executor("export", str(dump), **unchanged)
    assert again.exit_code == ExitCode.USAGE
    assert "exists already" in again.err
    assert dump.read_bytes() == content


def test_a_healthy_database_is_not_changed(alone: CommandLines, empty_database_url: str) -> None:
    # Nothing else is needed: services may run, and the broker is not asked.
    urls = {"TURNSTILE_DATABASE_URL": empty_database_url, "TURNSTILE_AMQP_URL": "amqp://127.0.0.1:1/"}
    assert alone.executor("migrate", **urls).exit_code == 0
    before = _value(empty_database_url, _STATE)
    ended = alone.executor("restore-check", **urls)
    assert (ended.exit_code, ended.out.splitlines()[0].split()[0]) == (0, "healthy"), ended.err
    assert _value(empty_database_url, _STATE) == before


def test_a_copy_is_recognised_and_repaired_once(alone: CommandLines, urls: dict[str, str]) -> None:
    url = urls["TURNSTILE_DATABASE_URL"]
    before = _value(url, _STATE)
    planned = alone.executor("restore-check", "--dry-run", **urls)
    assert "restored This database is a restored copy: it is another database" in planned.out
    assert "would    let ids continue with" in planned.out
    assert _value(url, _STATE) == before

    refused = alone.executor("restore-check", **urls)
    assert (refused.exit_code, "add --yes" in refused.err) == (ExitCode.USAGE, True)
    assert _value(url, _STATE) == before

    done = alone.executor("restore-check", "--first-id", "5000", "--yes", **urls)
    assert "ids continue with 5,000" in done.out
    assert _value(url, _NEXT_ID) == 5000
    recorded = "SELECT actor || ' ' || channel || ' ' || verb || after::text FROM ledger.audit_log"
    assert _value(url, recorded) == 'database database restored{"first_id": 5000}'
    repaired = _value(url, _STATE)
    assert alone.executor("restore-check", "--yes", **urls).out.startswith("healthy")
    assert _value(url, _STATE) == repaired
    # Of a snapshot of the disk nothing shows that, unless the operator says so.
    assert "--restored says so" in alone.executor("restore-check", "--restored", "--yes", **urls).out
    assert _value(url, _NEXT_ID) > 5000


def test_messages_about_executions_are_purged_and_requests_are_kept(
    alone: CommandLines, urls: dict[str, str]
) -> None:
    names = (
        EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS, EXECUTOR_REQUESTS, DEAD_LETTERS,
    )  # fmt: skip
    amqp_url = urls["TURNSTILE_AMQP_URL"]
    asyncio.run(_publish_to(amqp_url, names))
    planned = alone.executor("restore-check", "--dry-run", **urls)
    assert "purge 1 message in executor.completions" in planned.out
    assert asyncio.run(_ready(amqp_url, names)) == [1] * 5
    done = alone.executor("restore-check", "--yes", **urls)
    assert done.exit_code == 0, done.err + done.out
    assert "executor.requests: 1 message, which executors will admit" in done.out
    assert asyncio.run(_ready(amqp_url, names)) == [0, 0, 0, 1, 1]


def test_nothing_is_changed_while_a_service_consumes_the_queues(
    alone: CommandLines, urls: dict[str, str], empty_database_url: str, dump: Path
) -> None:
    before = _value(urls["TURNSTILE_DATABASE_URL"], _STATE)
    empty = urls | {"TURNSTILE_DATABASE_URL": empty_database_url}

    async def checked() -> list[Ended]:
        async with await aio_pika.connect(urls["TURNSTILE_AMQP_URL"]) as connection:
            channel = await connection.channel()
            await declare_executor(channel)
            queue = await channel.get_queue(EXECUTOR_COMPLETIONS)
            await queue.consume(_ignored)
            return [
                await asyncio.to_thread(alone.executor, "restore-check", "--yes", **urls),
                await asyncio.to_thread(
                    alone.executor, "restore-check", "--from", str(dump), "--yes", **empty
                ),
            ]

    for ended in asyncio.run(checked()):
        assert ended.exit_code == ExitCode.FAILED
        assert "executors consume executor.completions" in ended.err
    assert _value(urls["TURNSTILE_DATABASE_URL"], _STATE) == before
    assert _value(empty_database_url, "SELECT to_regclass('ledger.execution')") is None


async def _ignored(_: object) -> None:
    return


async def _publish_to(amqp_url: str, names: Sequence[str]) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await declare_executor(channel)
        for name in names:
            await channel.default_exchange.publish(aio_pika.Message(b"{}"), routing_key=name)


async def _ready(amqp_url: str, names: Sequence[str]) -> list[int]:
    async with restore_broker(amqp_url) as broker:
        return [counts.messages for counts in await broker.counts(names)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 2_000_000), (-60, 2_000_000), (3600, 38_000_000), (86_400, 866_000_000)]
)
def test_ids_continue_above_all_that_can_have_been_assigned(seconds: int, expected: int) -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    state = RestoredState(
        reserved_id=4711,
        last_id=4711,
        at=now,
        newest_at=now - timedelta(seconds=seconds),
        running=0,
        offered=0,
        waiting=0,
        delayed=0,
        has_roles=True,
    )
    assert next_id(state) == expected
    assert expected > 4711 + seconds * IDS_PER_SECOND


def test_nothing_is_changed_while_a_service_uses_the_copy(alone: CommandLines, urls: dict[str, str]) -> None:
    url = urls["TURNSTILE_DATABASE_URL"]
    before = _value(url, _STATE)

    async def checked() -> Any:
        executor = await asyncpg.connect(url, server_settings={"application_name": "turnstile executor"})
        try:
            return await asyncio.to_thread(alone.executor, "restore-check", "--yes", **urls)
        finally:
            await executor.close()

    ended = asyncio.run(checked())
    assert ended.exit_code == ExitCode.FAILED
    assert "executors use this database: turnstile executor (pid" in ended.err
    assert _value(url, _STATE) == before


def test_an_unreachable_broker_and_an_id_of_the_original_are_errors_that_change_nothing(
    alone: CommandLines, urls: dict[str, str]
) -> None:
    url = urls["TURNSTILE_DATABASE_URL"]
    _value(url, "UPDATE ledger.turn SET reserved_id = 4712")
    before = _value(url, _STATE)
    ended = alone.executor("restore-check", "--yes", **urls | {"TURNSTILE_AMQP_URL": "amqp://127.0.0.1:1/"})
    assert ended.exit_code == ExitCode.UNREACHABLE
    assert ended.err.startswith("TURNSTILE_AMQP_URL: ")
    ended = alone.executor("restore-check", "--first-id", "4711", "--yes", **urls)
    assert ended.exit_code == ExitCode.FAILED
    assert "--first-id: 4711 must be above 4711" in ended.err
    assert _value(url, _STATE) == before


def test_a_dump_is_restored_into_an_empty_database_only(
    alone: CommandLines, urls: dict[str, str], empty_database_url: str, dump: Path, tmp_path: Path
) -> None:
    refused = alone.executor("restore-check", "--from", str(dump), "--yes", **urls)
    assert refused.exit_code == ExitCode.FAILED
    assert "the database already contains tables of Turnstile" in refused.err

    broken = tmp_path / "b.dump"
    broken.write_bytes(dump.read_bytes()[:2000])
    urls["TURNSTILE_DATABASE_URL"] = empty_database_url
    failed = alone.executor("restore-check", "--from", str(broken), "--yes", **urls)
    assert failed.exit_code == ExitCode.FAILED
    assert "pg_restore" in failed.err
    assert _value(empty_database_url, "SELECT to_regclass('ledger.execution')") is None
    done = alone.executor("restore-check", "--from", str(dump), "--yes", **urls)
    assert done.exit_code == 0, done.err
    # Owners and rights were left out of the dump: the functions must not be open to everybody.
    assert _value(empty_database_url, _OPEN_TO_ALL) == 0


def test_defaults_of_a_database_keep_no_dump_from_being_restored(
    alone: CommandLines, urls: dict[str, str], empty_database_url: str, dump: Path
) -> None:
    name = urlsplit(empty_database_url).path[1:]
    for each in ("default_transaction_isolation = serializable", "default_transaction_read_only = on"):
        _value(empty_database_url, f"ALTER DATABASE {name} SET {each}")
    urls["TURNSTILE_DATABASE_URL"] = empty_database_url
    done = alone.executor("restore-check", "--from", str(dump), "--yes", **urls)
    assert done.exit_code == 0, done.err


async def test_a_server_that_hides_its_identity_can_be_migrated(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = ("SELECT no_such_function()", *origin._PLACE[1:])
    monkeypatch.setattr(origin, "_PLACE", hidden)
    await migrate(empty_database_url)
    async with session_on(empty_database_url) as session:
        recorded = await origin.recorded_origin(session)
        assert recorded == await origin.present_origin(session)
        assert recorded.startswith("unknown/0000000")


@pytest.mark.parametrize(
    ("present", "says"),
    [
        ("1/00000001/5/9", None),
        ("2/00000001/5/9", "another PostgreSQL server"),
        ("1/00000002/5/9", "restored from a backup, or is a promoted standby"),
        ("1/00000001/6/9", "another database of the server"),
        ("1/00000001/5/8", "its tables were created again"),
        ("unknown/00000001/5/9", None),
    ],
)
def test_each_difference_of_the_origin_is_named(present: str, says: str | None) -> None:
    changes = changes_of_origin("1/00000001/5/9", present)
    assert (says is None) == (not changes)
    assert says is None or says in changes[0]
