"""The audit log: each change by an operator is one row, in the transaction of the change, and stays."""

import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.inbox import ANN
from tests.support.ledger import LOST_WORKER
from tests.support.served import Served, serve
from tests.support.traffic import until
from turnstile.executor.api.auth import READING, templates
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.sql import statements


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1)
    await api.define("c.d", max_concurrent=1)
    await joined(api)
    await api.database.fetch("DELETE FROM ledger.audit_log")
    return api


async def joined(api: Served) -> None:
    api.join()

    async def is_there() -> bool:
        return (await api.http.get(f"/api/v1/workers/{api.worker.worker_id}")).is_success

    await until(is_there, "the worker has joined")


@pytest.fixture
async def guarded(database_url: str) -> AsyncIterator[Served]:
    settings = ExecutorSettings.model_validate({"api_tokens": "alice:operate:one, bob:read:two"})
    async with serve(database_url, settings) as served:
        await served.installation.define("action", "a.b", max_concurrent=0)
        yield served


async def log(api: Served, **wanted: Any) -> list[tuple[Any, ...]]:
    """Verb, subject, before and after of the rows that match, newest first."""
    items = (await api.get("/audit-log", **wanted))["items"]
    return [(i["verb"], i["subject_kind"], i["subject"], i["before"], i["after"]) for i in items]


async def post(api: Served, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
    answer = await api.http.post(f"/api/v1{path}", json=body or {}, headers=headers)
    assert answer.is_success, answer.text
    return dict(answer.json())


async def test_a_row_says_who_from_where_and_what(api: Served) -> None:
    one, two = await api.submit_many("a.b", 2)
    await api.start(one)
    await api.installation.inbox.cancel([one, two], "enough", ANN)
    items = (await api.get("/audit-log"))["items"]
    assert {(i["user"], i["address"], i["channel"], i["action_ref"]) for i in items} == {
        (ANN.name, ANN.address, ANN.channel, "a.b")
    }
    assert sorted(await log(api)) == [
        ("cancelled", "execution", str(one), {"status": "running"},
         {"status": "running", "cancel_requested": True, "reason": "enough"}),
        ("cancelled", "execution", str(two), {"status": "queued"},
         {"status": "cancelled", "reason": "enough"}),
    ]  # fmt: skip


async def test_a_change_by_filter_is_a_row_with_the_filter_and_one_for_each_execution(api: Served) -> None:
    await api.http.post("/api/v1/actions/a.b/pause")
    await api.database.fetch("DELETE FROM ledger.audit_log")
    ids = await api.submit_many("a.b", 2)
    await post(api, "/executions/cancel", {"filter": {"action_ref": "a.b"}, "dry_run": True})
    assert await log(api) == []
    await post(api, "/executions/cancel", {"filter": {"action_ref": "a.b"}, "reason": "enough"})
    *single, bulk = await log(api)
    assert bulk == (
        "cancelled", "executions", "", {},
        {"filter": {"action_ref": "a.b"}, "reason": "enough", "matched": 2},
    )  # fmt: skip
    assert {row[2] for row in single} == {str(i) for i in ids}
    await post(api, "/executions/retry", {"filter": {"action_ref": "a.b", "status": ["cancelled"]}})
    assert {row[2] for row in await log(api, verb="retried")} == {"", *map(str, ids)}


async def test_a_caller_is_the_token_the_address_and_what_the_client_says_it_is(guarded: Served) -> None:
    for client in ("cli", "dashboard", "spaceship", ""):
        headers = {"Authorization": "Bearer one", "Turnstile-Client": client}
        (one,) = await _submitted(guarded)
        answer = await guarded.http.post(f"/api/v1/executions/{one}/cancel", headers=headers)
        assert answer.status_code == 202
    reading = {"Authorization": "Bearer two"}
    items = (await guarded.http.get("/api/v1/audit-log?user=alice", headers=reading)).json()["items"]
    assert [item["channel"] for item in items] == ["api", "api", "dashboard", "cli"]
    assert {(item["user"], item["address"], item["action_ref"]) for item in items} == {
        ("alice", "127.0.0.1", "a.b")
    }
    assert (await guarded.http.get("/api/v1/audit-log")).status_code == 401


async def _submitted(api: Served) -> list[int]:
    answer = await api.http.post(
        "/api/v1/executions", json={"action_ref": "a.b"}, headers={"Authorization": "Bearer one"}
    )
    return [answer.json()["id"]]


async def test_conditions_select_and_pages_continue(api: Served) -> None:
    ids = await api.submit_many("a.b", 3) + await api.submit_many("c.d", 2)
    for execution_id in ids:
        await post(api, f"/executions/{execution_id}/cancel")
    page = await api.get("/audit-log", action_ref="a.b", limit=2)
    rest = await api.get("/audit-log", action_ref="a.b", limit=2, cursor=page["next_cursor"])
    assert [i["subject"] for i in page["items"] + rest["items"]] == [str(i) for i in reversed(ids[:3])]
    assert rest["next_cursor"] is None
    assert len(await log(api, user="local", verb="cancelled", subject_kind="execution")) == 5
    now = datetime.now(UTC)
    assert await log(api, recorded_before=(now - timedelta(hours=1)).isoformat()) == []
    assert len(await log(api, recorded_after=(now - timedelta(hours=1)).isoformat())) == 5
    for wrong in ({"verb": "flown"}, {"subject_kind": "planet"}, {"when": "now"}, {"cursor": "x"}):
        assert (await api.http.get("/api/v1/audit-log", params=wrong)).status_code == 422


_LETTER = {
    "fingerprint": "1", "code": "unknown_action", "error": "", "type": "execution.requested",
    "message_id": "m", "exchange": "", "routing_key": "", "original_routing_key": "", "tries": 0,
    "headers": {}, "body_bytes": 0, "stored_bytes": 0,
}  # fmt: skip
_WEBHOOK = """
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at, state, ended_at, last_status)
VALUES ($1, 'http://h/', 'http://h', now(), now(), 'failed', now(), 500)
"""
_CHANGES: tuple[tuple[str, str, str, Any], ...] = (
    ("PUT", "/actions/{ref}", "/actions/new", {"submitter_keys": True}),
    ("PATCH", "/actions/{ref}", "/actions/new", {"max_concurrent": 7}),
    ("POST", "/actions/{ref}/pause", "/actions/new/pause", None),
    ("POST", "/actions/{ref}/resume", "/actions/new/resume", None),
    ("PUT", "/actions/{ref}/keys/{key:text}", "/actions/new/keys/7", {"weight": 2}),
    ("DELETE", "/actions/{ref}/keys/{key:text}", "/actions/new/keys/7", None),
    ("PUT", "/schedules/{name}", "/schedules/often", {"action_ref": "new", "every": "1h"}),
    ("PATCH", "/schedules/{name}", "/schedules/often", {"every": "2h"}),
    ("POST", "/schedules/{name}/pause", "/schedules/often/pause", None),
    ("POST", "/schedules/{name}/resume", "/schedules/often/resume", None),
    ("DELETE", "/schedules/{name}", "/schedules/often", None),
    ("DELETE", "/actions/{ref}", "/actions/new", None),
    ("PUT", "/resources/{name}", "/resources/cad", {"capacity": 2}),
    ("PATCH", "/resources/{name}", "/resources/cad", {"capacity": 3}),
    ("POST", "/resources/{name}/pause", "/resources/cad/pause", None),
    ("POST", "/resources/{name}/resume", "/resources/cad/resume", None),
    ("DELETE", "/resources/{name}", "/resources/cad", None),
    ("PUT", "/pools/{name}", "/pools/other", {"order": "arrival"}),
    ("PATCH", "/pools/{name}", "/pools/other", {"weights": {"a.b": 2}}),
    ("POST", "/pools/{name}/pause", "/pools/other/pause", None),
    ("POST", "/pools/{name}/resume", "/pools/other/resume", None),
    ("POST", "/executions/{execution_id}/cancel", "/executions/1/cancel", None),
    ("POST", "/executions/{execution_id}/retry", "/executions/1/retry", None),
    ("POST", "/executions/cancel", "/executions/cancel", {"filter": {"action_ref": "a.b"}}),
    ("POST", "/executions/retry", "/executions/retry", {"filter": {"status": ["cancelled"]}}),
    ("POST", "/workers/{worker_id}/drain", "/workers/w/drain", None),
    ("POST", "/workers/{worker_id}/acknowledge", "/workers/lost/acknowledge", None),
    ("POST", "/dead-letters/purge", "/dead-letters/purge", {"all": True}),
    ("POST", "/webhooks/replay", "/webhooks/replay", {"all": True}),
    ("POST", "/tokens", "/tokens", {"name": "ci", "role": "read"}),
    ("DELETE", "/tokens/{token_id}", "/tokens/1", None),
)
_NOT_HERE = {
    # Questions.
    ("POST", "/workers/{worker_id}/no-reclaim"),
    ("POST", "/schedules/occurrences"),
    # Submissions are executions, not operations.
    ("POST", "/executions"),
    ("POST", "/schedules/{name}/run"),
    # Needs a broker: `tests/e2e/test_dead_letters.py` does it over HTTP.
    ("POST", "/dead-letters/replay"),
}


async def test_every_route_that_changes_something_is_recorded(database_url: str) -> None:
    settings = ExecutorSettings.model_validate({"api_tokens": "root:admin:one"})
    async with serve(database_url, settings) as served:
        changing = {route for route in templates(served.app) if route[0] not in READING}
        assert {change[:2] for change in _CHANGES} | _NOT_HERE == changing
        served.http.headers["Authorization"] = "Bearer one"
        await served.define("a.b", max_concurrent=0)
        await joined(served)
        ids = await served.submit_many("a.b", 2)
        assert ids[0] == 1
        await served.database.fetch(_WEBHOOK, ids[0])
        await served.database.fetch(LOST_WORKER)
        await served.database.fetch(
            statements("dead_letters/dead_letters.sql")["store"], json.dumps([_LETTER]), [b""]
        )
        for method, route, path, body in _CHANGES:
            before = await served.database.fetchval("SELECT coalesce(max(id), 0) FROM ledger.audit_log")
            url = "/api/v1" + path.replace("/workers/w/", f"/workers/{served.worker.worker_id}/")
            answer = await served.http.request(method, url, json=body)
            assert answer.is_success, (route, answer.text)
            added = await served.database.fetch("SELECT * FROM ledger.audit_log WHERE id > $1", before)
            assert added, f"{method} {route} is not in the audit log"
            assert {(row["actor"], row["channel"]) for row in added} == {("root", "api")}, route


async def test_a_change_of_a_key_and_the_replay_of_a_webhook_say_what_was_and_what_is(api: Served) -> None:
    await api.define("k.e", submitter_keys=True)
    await api.database.fetch("DELETE FROM ledger.audit_log")
    key = "/api/v1/actions/k.e/keys/7"
    for weight in (2, 3):
        assert (await api.http.put(key, json={"weight": weight})).is_success
    assert (await api.http.delete(key)).is_success
    found = [row for row in await log(api, subject_kind="action") if row[2] == "k.e"]
    assert [(row[3], row[4]) for row in found] == [
        ({"keys.7": {"weight": 3}}, {}),
        ({"keys.7": {"weight": 2}}, {"keys.7": {"weight": 3}}),
        ({}, {"keys.7": {"weight": 2}}),
    ]
    (one,) = await api.submit_many("a.b", 1)
    await api.database.fetch(_WEBHOOK, one)
    await post(api, "/webhooks/replay", {"ids": [one]})
    (replayed,) = await log(api, subject_kind="webhook")
    assert replayed[:3] == ("replayed", "webhook", str(one))


async def test_a_changed_token_file_is_recorded_once_the_database_can(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnstile.executor.api_tokens._REREAD_SECONDS", 0.0)
    monkeypatch.setattr("turnstile.executor.stored_tokens._RECORD_SECONDS", 0.05)
    monkeypatch.setattr("turnstile.executor.stored_tokens._LATE", timedelta(0))
    caplog.set_level(logging.INFO)
    file = tmp_path / "tokens"
    file.write_text("alice:operate:one\n")
    settings = ExecutorSettings.model_validate({"api_tokens_file": str(file)})
    async with serve(database_url, settings) as served:
        served.http.headers["Authorization"] = "Bearer two"
        await served.database.fetch(
            "ALTER TABLE ledger.audit_log ADD CONSTRAINT closed CHECK (false) NOT VALID"
        )
        began_at = datetime.now(UTC)
        for text in ("alice:operate:two\n", "alice:operate:two\nbob:read:three\n"):
            file.write_text(text)
            assert (await served.http.get("/api/v1/actions")).status_code == 200
        await until(lambda: "token_file_change_not_recorded" in caplog.messages, "it is logged")
        read_until = datetime.now(UTC)
        assert await log(served, subject_kind="token_file") == []
        await served.database.fetch("ALTER TABLE ledger.audit_log DROP CONSTRAINT closed")

        async def recorded() -> bool:
            return len(await log(served, subject_kind="token_file")) == 2

        await until(recorded, "both changes are recorded")
        later, earlier = await log(served, subject_kind="token_file")
    for row in (earlier, later):
        assert began_at <= datetime.fromisoformat(row[4].pop("read_at")) <= read_until
    assert earlier[3:] == (
        {"tokens": ["alice:operate"]},
        {"tokens": ["alice:operate"], "added": 1, "removed": 1},
    )
    assert later[3:] == (
        {"tokens": ["alice:operate"]}, {"tokens": ["alice:operate", "bob:read"], "added": 1, "removed": 0}
    )  # fmt: skip
    about_it = [message for message in caplog.messages if message.startswith("token_file_change")]
    assert about_it == ["token_file_change_not_recorded", "token_file_change_not_recorded_over"]
