"""API tokens in the database: created, limited to some actions, expired, revoked, without any restart."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.served import Served, serve
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.api.auth import READING, Limit, right_to, templates
from turnstile.executor.api.problems import PREFIX
from turnstile.executor.api_tokens import ApiTokens, Role, digest_of
from turnstile.executor.callers import Caller
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.stored_tokens import AcceptedTokens, TokenStore

ADMIN = "a-token-of-the-setting"
ALICE = Caller("alice")


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executors read the tokens again after a tenth of a second."""
    monkeypatch.setattr("turnstile.executor.stored_tokens.REREAD_SECONDS", 0.1)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    settings = ExecutorSettings.model_validate({"api_tokens": f"root:admin:{ADMIN}, old:operate:old-one"})
    async with serve(database_url, settings) as served:
        for ref in ("reports.render", "reports.send", "billing.run"):
            assert (await ask(served, "PUT", f"/actions/{ref}", body={"max_concurrent": 1})).is_success
        yield served


@pytest.fixture
async def without(database_url: str) -> AsyncIterator[Served]:
    """A service without tokens in its settings, on loopback."""
    async with serve(database_url) as served:
        yield served


async def ask(api: Served, method: str, path: str, token: str = ADMIN, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await api.http.request(method, f"/api/v1{path}", headers=headers, json=body)


async def create(api: Served, role: str = "submit", *, by: str = ADMIN, **fields: Any) -> dict[str, Any]:
    answer = await ask(api, "POST", "/tokens", by, {"name": "ci", "role": role, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def create_directly(api: Served) -> str:
    """Create a token of an admin in the database."""
    _, token = await TokenStore(api.database).create("ci", Role.ADMIN, None, seconds=None, changed_by=ALICE)
    return token


async def status(api: Served, token: str, path: str = "/actions") -> int:
    return (await ask(api, "GET", path, token)).status_code


async def test_a_token_is_shown_once_stored_as_a_digest_and_works_at_once(api: Served) -> None:
    created = await create(api, "read", expires_in="90d")
    token = created.pop("token")
    assert len(token) > 40
    assert await status(api, "an-unknown-one") == 401
    second = await create(api, "read")  # also if the tokens were just read
    assert await status(api, second["token"]) == 200
    assert (await ask(api, "DELETE", f"/tokens/{second['id']}")).status_code == 200
    await api.database.fetch("DELETE FROM ledger.api_token WHERE id = $1", second["id"])
    assert await status(api, token) == 200
    assert (await ask(api, "POST", "/executions", token, {"action_ref": "billing.run"})).status_code == 403
    listed = (await ask(api, "GET", "/tokens")).json()["items"]
    assert [{**each, "last_used_at": None} for each in listed] == [created]
    assert (created["state"], created["created_by"], created["scope"]) == ("valid", "root", None)
    stored = await api.database.fetchrow("SELECT t.*, t::text AS text FROM ledger.api_token t")
    assert stored is not None
    assert stored["digest"] == digest_of(token)
    assert token not in stored["text"]
    log = (await ask(api, "GET", f"/audit-log?subject_kind=token&subject={created['id']}")).json()["items"]
    assert [(i["verb"], i["user"], i["after"]["role"]) for i in log] == [("created", "root", "read")]
    assert token not in json.dumps(log)


async def test_only_admins_create_list_and_revoke_and_a_wrong_request_names_its_field(api: Served) -> None:
    for method, path in (("GET", "/tokens"), ("POST", "/tokens"), ("DELETE", "/tokens/1")):
        answer = await ask(api, method, path, "old-one", {"name": "n", "role": "read"})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await status(api, "old-one") == 200
    assert (await ask(api, "PUT", "/actions/c.d", "old-one", {})).status_code == 200
    wrong: list[dict[str, Any]] = [
        *({"role": "god"}, {"scope": []}, {"scope": ["a."], "role": "admin"}),
        *({"expires_in": 0}, {"name": ""}, {"colour": "red"}),
    ]
    for fields in wrong:
        answer = await ask(api, "POST", "/tokens", ADMIN, {"name": "n", "role": "read", **fields})
        assert answer.status_code in (400, 422)
        assert next(iter(fields)) in answer.json()["detail"]


async def test_a_revoked_token_is_refused_by_every_executor_within_the_bound(
    api: Served, database_url: str
) -> None:
    created = await create(api)
    settings = ExecutorSettings.model_validate({"api_tokens": "root:admin:another"})
    async with serve(database_url, settings) as second:
        for executor in (api, second):
            assert await status(executor, created["token"]) == 200
        revoked = await ask(api, "DELETE", f"/tokens/{created['id']}")
        assert (revoked.json()["state"], revoked.json()["revoked_by"]) == ("revoked", "root")
        await asyncio.sleep(0.15)
        for executor in (api, second):
            assert await status(executor, created["token"]) == 401
    again = await ask(api, "DELETE", f"/tokens/{created['id']}")
    assert again.json()["revoked_at"] == revoked.json()["revoked_at"]
    assert (await ask(api, "DELETE", "/tokens/999")).status_code == 404
    log = (await ask(api, "GET", "/audit-log?subject_kind=token&verb=revoked")).json()["items"]
    assert len(log) == 1


async def test_an_expired_token_is_refused_also_while_the_database_cannot_be_read(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await create(api, expires_in="1s")
    assert await status(api, created["token"]) == 200

    async def unreadable(_: TokenStore) -> None:
        raise TimeoutError

    monkeypatch.setattr(TokenStore, "valid", unreadable)
    await asyncio.sleep(0.15)
    assert await status(api, created["token"]) == 200  # what is known stays valid
    await asyncio.sleep(1.0)
    assert await status(api, created["token"]) == 401
    assert (await ask(api, "GET", "/tokens")).json()["items"][0]["state"] == "expired"


async def test_the_first_token_ends_access_without_one_and_the_last_one_does_not_restore_it(
    without: Served,
) -> None:
    assert await status(without, "") == 200
    created = await create(without, "admin", by="")
    await asyncio.sleep(0.15)
    assert await status(without, "") == 401
    # With a token any host name is allowed.
    headers = {"Authorization": f"Bearer {created['token']}", "Host": "turnstile.example"}
    assert (await without.http.get("/api/v1/actions", headers=headers)).status_code == 200
    assert (await ask(without, "DELETE", f"/tokens/{created['id']}", created["token"])).status_code == 200
    await asyncio.sleep(0.15)
    assert await status(without, "") == 401
    assert (await without.http.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "database: the API tokens were not read within 0.1 s"),
        (Unavailable("database: refused"), "database: refused"),
        (
            asyncpg.UndefinedTableError("no api_token"),
            "database: the API tokens cannot be read: no api_token",
        ),
    ],
)
async def test_until_the_tokens_are_read_all_requests_but_probes_and_files_are_refused(
    without: Served, monkeypatch: pytest.MonkeyPatch, error: Exception | None, reason: str
) -> None:
    token = await create_directly(without)

    async def valid(_: TokenStore) -> None:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(TokenStore, "valid", valid)
        patch.setattr("turnstile.executor.stored_tokens._READ_TIMEOUT_SECONDS", 0.1)
        for shown in ("", token):
            answer = await ask(without, "PUT", "/actions/c.d", shown, {})
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.json()["detail"] == reason
        for path in ("/livez", "/readyz", "/", "/docs"):
            for host in ("127.0.0.1", "turnstile.example"):
                assert (await without.http.get(path, headers={"Host": host})).status_code == 200
    assert await status(without, "") == 401
    assert await status(without, token) == 200
    assert (await ask(without, "GET", "/actions", token)).json()["items"] == []


async def test_an_event_stream_ends_with_its_token(database_url: str) -> None:
    # It reads the tokens in the background: a pool, because one connection does one thing at a time.
    database = Database(database_url, application_name="test", connections_max=2)
    await database.open()
    try:
        store = TokenStore(database)
        tokens = AcceptedTokens(ApiTokens([]), store, reread_seconds=0.05)
        token_id, text = await store.create("ci", Role.READ, None, seconds=None, changed_by=ALICE)
        found = await tokens.find(text)
        assert found is not None
        ended = asyncio.create_task(tokens.until_refused(found))
        await asyncio.sleep(0.2)
        assert not ended.done()
        assert await store.revoke(token_id, ALICE)
        async with asyncio.timeout(5):
            await ended
    finally:
        await database.close()


async def test_the_last_use_is_stored_at_most_once_a_minute(api: Served) -> None:
    created = await create(api, "read")
    for _ in range(3):
        assert await status(api, created["token"]) == 200

    async def used() -> bool:
        return (await ask(api, "GET", "/tokens")).json()["items"][0]["last_used_at"] is not None

    await until(used, "the use is stored")
    before = await api.database.fetchval("SELECT xmin::text FROM ledger.api_token")
    await TokenStore(api.database).note_use(created["id"])
    assert await api.database.fetchval("SELECT xmin::text FROM ledger.api_token") == before
    await api.database.fetch("UPDATE ledger.api_token SET last_used_at = now() - interval '2 min'")
    await TokenStore(api.database).note_use(created["id"])
    assert await api.database.fetchval("SELECT last_used_at > now() - interval '1 min' FROM ledger.api_token")


# Tokens for some actions.


async def scoped(api: Served, role: str = "operate") -> str:
    return str((await create(api, role, scope=["reports."]))["token"])


async def submitted(api: Served, ref: str) -> int:
    return int((await ask(api, "POST", "/executions", ADMIN, {"action_ref": ref})).json()["id"])


async def test_every_route_is_limited_or_refused(api: Served) -> None:
    token = await scoped(api)
    await submitted(api, "billing.run")  # the execution 1
    refused = 0
    for method, template in templates(api.app):
        role, limit = right_to(method, template)
        if role is None or role is Role.ADMIN or limit is Limit.ROUTE:
            continue
        path = template.replace("{ref}", "billing.run")
        path = "/".join("1" if step.startswith("{") else step for step in path.split("/"))
        prefix = "" if path == "/metrics" else PREFIX
        body: dict[str, Any] | None = None if method in READING else {}
        answer = await api.http.request(
            method, prefix + path, headers={"Authorization": f"Bearer {token}"}, json=body
        )
        assert answer.status_code in (403, 404), (method, path, answer.text)
        refused += 1
    assert refused > 30


async def test_it_uses_its_actions_and_their_executions_and_whoami_shows_its_scope(api: Served) -> None:
    created = await create(api, "operate", scope=["reports."], expires_in="1h")
    token = created["token"]
    shown = (await ask(api, "GET", "/whoami", token)).json()
    assert (shown["scope"], shown["expires_at"]) == (["reports."], created["expires_at"])
    assert shown["id"] == created["id"]
    refused = shown["refused"]
    assert "reports...." in refused["POST /workers/{worker_id}/drain"]
    assert "GET /events" in refused
    assert not {"POST /actions/{ref}/pause", "POST /executions"} & refused.keys()

    own = (await ask(api, "POST", "/executions", token, {"action_ref": "reports.render"})).json()["id"]
    assert await status(api, token, f"/executions/{own}") == 200
    assert await status(api, token, f"/executions/{own}/logs") == 200
    assert (await ask(api, "POST", f"/executions/{own}/cancel", token)).status_code == 202
    assert (await ask(api, "POST", f"/executions/{own}/retry", token)).status_code == 202
    assert (await ask(api, "PATCH", "/actions/reports.render", token, {"paused": True})).status_code == 200
    assert (await ask(api, "PUT", "/actions/reports.new", token, {})).status_code == 200
    assert await status(api, token, "/actions/reports.render/queue-stats") == 200


async def test_actions_and_executions_of_others_do_not_exist_for_it(api: Served) -> None:
    token, other = await scoped(api), await submitted(api, "billing.run")
    for method, path in (
        ("GET", f"/executions/{other}"),
        ("GET", f"/executions/{other}/logs"),
        ("POST", f"/executions/{other}/cancel"),
        ("POST", f"/executions/{other}/retry"),
    ):
        answer = await ask(api, method, path, token)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    answer = await ask(api, "PATCH", "/actions/billing.run", token, {"paused": True})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    items = [{"action_ref": ref} for ref in ("reports.render", "billing.run", "reports")]
    answer = await ask(api, "POST", "/executions", token, items)
    assert [item.get("code") for item in answer.json()["items"]] == [None, "forbidden", "forbidden"]
    single = await ask(api, "POST", "/executions", token, {"action_ref": "billing.run"})
    assert (single.status_code, single.json()["code"]) == (403, "forbidden")
    status_of_it = await api.database.fetchval(
        "SELECT status::text FROM ledger.execution WHERE id = $1", other
    )
    assert status_of_it in ("queued", "scheduled")


async def test_its_lists_and_filters_reach_its_actions_only(api: Served) -> None:
    token = await scoped(api)
    own, other = await submitted(api, "reports.send"), await submitted(api, "billing.run")

    async def items(path: str) -> list[dict[str, Any]]:
        answer = await ask(api, "GET", path, token)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    assert [item["ref"] for item in await items("/actions")] == ["reports.render", "reports.send"]
    assert [item["id"] for item in await items("/executions")] == [own]
    for condition in ("status=queued", "status=scheduled", "status=completed"):
        assert {item["id"] for item in await items(f"/executions?{condition}")} <= {own}
    assert await items("/executions?action_ref=billing.run") == []
    assert {item["action_ref"] for item in await items("/queues")} == {"reports.render", "reports.send"}
    assert {item["action_ref"] for item in await items("/audit-log")} == {"reports.render", "reports.send"}
    wanted = {"filter": {"created_after": "2020-01-01T00:00:00Z"}}
    cancelled = (await ask(api, "POST", "/executions/cancel", token, wanted)).json()
    assert [item["id"] for item in cancelled["items"]] == [own]
    await ask(api, "POST", f"/executions/{other}/cancel")
    again = {"filter": {"status": ["cancelled"]}}
    retried = (await ask(api, "POST", "/executions/retry", token, again)).json()
    assert [item["id"] for item in retried["items"]] == [own]
    for verb in ("cancel", "retry"):
        named = (
            await ask(api, "POST", f"/executions/{verb}", token, {"ids": [other], "dry_run": True})
        ).json()
        assert named["items"] == []
        assert [left["reason"] for left in named["left_out"]] == ["no such execution"]
