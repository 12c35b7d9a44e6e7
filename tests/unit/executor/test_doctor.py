"""The checks of `executor doctor` on prepared facts: what each calls wrong, and what it then advises."""

import asyncio
from typing import Any

import pytest

from turnstile.common.database import READ_ONLY
from turnstile.common.database_session import SETTINGS
from turnstile.executor.doctor import broker, database, examine, host
from turnstile.executor.doctor.findings import Facts, Finding, NotChecked, judged
from turnstile.executor.settings import ExecutorSettings
from turnstile.migrations.schema_check import SchemaVersion

_TABLES = {
    "database": database.CHECKS,
    "broker": {**broker.BROKER_CHECKS, **broker.POLICY_CHECKS},
    "host": host.CHECKS,
}
_WELL: dict[str, dict[str, Any]] = {
    "database": {
        "major": 15, "version": "15.18", "is_standby": False, "unsuited": None, "settings": dict(SETTINGS),
        "closed": None, "role": "turnstile", "database": "turnstile", "needed": 12, "connections_max": 97,
        "connections": 20, "database_limit": None, "role_limit": None, "collation_version": "2.36",
        "library_version": "2.36", "fsync": "on", "full_page_writes": "on", "ahead_seconds": 0.1,
        "slack_seconds": 0.0, "is_pooled": False, "changeable": None, "leads": True, "dropped": {},
    },
    "broker": {
        "nodes": 2, "unreachable": [], "versions": ["3.10.8"], "publishing": None, "missing": [],
        "declaration": None, "policies": [],
    },
    "host": {"unknown": [], "files_max": 1024, "files_needed": 396},
}  # fmt: skip


def _facts(of: str, **changes: Any) -> Facts:
    found = Facts(_WELL[of])
    if of == "database":
        found["schema"] = SchemaVersion("0001")
    found.update(changes)
    return found


@pytest.mark.parametrize("of", _TABLES)
def test_all_is_well(of: str) -> None:
    assert {each.status for each in judged(_TABLES[of], _facts(of))} == {"ok"}


@pytest.mark.parametrize(
    ("of", "changes", "expected"),
    [
        ("database", {"major": 14}, ("server version", "failed", "upgrade the server to 15 or newer")),
        ("database", {"is_standby": True}, ("primary", "failed", READ_ONLY)),
        ("database", {"unsuited": "the encoding"}, ("encoding and triggers", "failed", "the encoding")),
        ("database", {"settings": {**SETTINGS, "TimeZone": "Asia/Tokyo"}},
         ("session settings", "failed", "(TimeZone): name host and port of the server itself")),
        ("database", {"closed": "DELETE on ledger.turn"}, ("database rights", "failed", "setup-permissions")),
        ("database", {"schema": SchemaVersion(None)}, ("schema", "failed", "executor migrate")),
        ("database", {"schema": SchemaVersion("9999")}, ("schema", "warning", "upgrade this service")),
        ("database", {"connections": 90}, ("connections", "warning", "7 of 97 connections free")),
        ("database", {"role_limit": 5}, ("connections", "warning", "may have 5 connections")),
        ("database", {"database_limit": 0}, ("connections", "warning", "may have 0 connections")),
        ("database", {"library_version": "2.40"}, ("collation", "warning", "REFRESH COLLATION VERSION")),
        ("database", {"fsync": "off"}, ("durability", "warning", "set fsync = on in")),
        ("database", {"full_page_writes": "off"}, ("durability", "warning", "set full_page_writes = on in")),
        ("database", {"ahead_seconds": 1.2}, ("clock", "warning", "1.2 s ahead of this host's")),
        ("database", {"ahead_seconds": -3.0}, ("clock", "warning", "3.0 s behind this host's")),
        ("database", {"changeable": "run it"}, ("audit log", "warning", "run it")),
        ("database", {"leads": False}, ("leader", "warning", "'executor serve'")),
        ("database", {"dropped": {"expired": 2, "maxlen": 1}},
         ("dropped messages", "warning", "(2 expired, 1 maxlen): remove the policy")),
        ("broker", {"unreachable": ["a is down"]}, ("broker", "warning", "a is down")),
        ("broker", {"unreachable": ["down", "down"]}, ("broker", "failed", "down")),
        ("broker", {"versions": ["3.9.1", "3.10.0"]}, ("broker version", "failed", "3.9.1 is too old")),
        ("broker", {"publishing": "an alarm"}, ("publishing", "failed", "an alarm")),
        ("broker", {"missing": ["executor"]}, ("queues and exchanges", "warning", "has no executor")),
        ("broker", {"declaration": "refused"}, ("queues and exchanges", "failed", "refused")),
        ("broker", {"policies": ["a", "b"]}, ("policies", "failed", "a; b")),
        ("host", {"unknown": ["X: unknown"]}, ("settings", "warning", "X: unknown: correct or remove")),
        ("host", {"files_max": 256}, ("open files", "warning", "may need 396: raise the limit")),
    ],
)  # fmt: skip
def test_one_wrong_fact_is_one_finding_with_its_remedy(
    of: str, changes: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    (wrong,) = [each for each in judged(_TABLES[of], _facts(of, **changes)) if each.status != "ok"]
    assert (wrong.check, wrong.status) == expected[:2]
    assert expected[2] in wrong.sentence


def test_a_clock_is_not_called_wrong_by_a_slow_answer() -> None:
    facts = _facts("database", ahead_seconds=1.5, slack_seconds=0.8)
    assert [each for each in judged(database.CHECKS, facts) if each.status != "ok"] == []


def test_any_number_of_open_files_is_enough() -> None:
    assert {each.status for each in judged(host.CHECKS, _facts("host", files_max=-1))} == {"ok"}


def test_what_was_not_read_is_not_checked_with_the_reason() -> None:
    facts = Facts(major=15)
    facts.fault, facts.why_not = "the connection was lost", "the database does not answer"
    first, version, *others = judged(database.CHECKS, facts)
    assert first == Finding("database", "failed", "the connection was lost")
    assert {(each.status, each.sentence) for each in (version, *others)} == {
        ("not checked", "the database does not answer")
    }


async def test_a_server_that_never_answers_is_a_failure_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    async def is_not_set(*_: object) -> None:
        raise NotChecked("not set")

    monkeypatch.setattr(examine, "_SECONDS", 0.01)
    monkeypatch.setattr(examine, "read_broker", hangs)
    monkeypatch.setattr(database, "read_database", hangs)
    monkeypatch.setattr(examine, "read_policies", is_not_set)
    found = await examine.examine(ExecutorSettings(), management_url="", environment={})
    by_name = {each.check: each for each in found}
    assert (by_name["database"].status, by_name["broker"].status) == ("failed", "failed")
    assert by_name["schema"] == Finding("schema", "not checked", "the server does not answer")
    assert by_name["policies"] == Finding("policies", "not checked", "not set")
