"""Authentication, health, the OpenAPI document, and the form of every error."""

import asyncio
from collections.abc import AsyncIterator

import jsonschema_rs
import pytest
from pydantic import SecretStr
from schemathesis.specs.openapi.definitions import OPENAPI_31

import turnstile
from tests.support.served import Served, serve
from turnstile.executor.api import bodies
from turnstile.executor.settings import ExecutorSettings

JSON_BODIES = ("application/json", "application/problem+json")


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1)
    return api


@pytest.fixture
async def guarded(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url, ExecutorSettings(api_tokens=SecretStr("one, two"))) as served:
        yield served


async def test_without_a_valid_token_every_route_but_health_is_refused(guarded: Served) -> None:
    for path in ("/livez", "/readyz"):
        assert (await guarded.http.get(path)).status_code == 200
    for path in ("/api/v1/executions", "/actions/a.b", "/openapi.json", "/no/such"):
        for shown in (b"", b"Bearer", b"Bearer three", b"Bearer one, two", b"Basic one", b"Bearer \xe4"):
            answer = await guarded.http.get(path, headers={b"Authorization": shown} if shown else {})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert "TURNSTILE_API_TOKEN" in answer.json()["detail"]
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a_page_of_another_site_changes_nothing(api: Served) -> None:
    body = {"action_ref": "a.b"}
    foreign = await api.http.post("/api/v1/executions", json=body, headers={"Origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "forbidden")
    assert (await api.get("/executions"))["items"] == []
    own = await api.http.post("/api/v1/executions", json=body, headers={"Origin": "http://127.0.0.1"})
    assert own.status_code == 202


async def test_a_foreign_host_name_reads_and_changes_nothing(api: Served) -> None:
    routes = (("GET", "/api/v1/executions"), ("POST", "/api/v1/executions"), ("GET", "/events"))
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[evil]"):
        foreign = {"Host": host, "Origin": f"http://{host}"}
        for method, path in routes:
            answer = await api.http.request(method, path, headers=foreign, content=b'{"action_ref": "a.b"}')
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
            assert "TURNSTILE_API_TOKENS" in answer.json()["detail"]
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:9", "[::1]:8000", "10.0.0.7"):
        answer = await api.http.get("/api/v1/executions", headers={"Host": host})
        assert (answer.status_code, answer.json()["items"]) == (200, []), host


async def test_each_token_is_valid_and_allows_any_host_name(guarded: Served) -> None:
    for authorization in ("Bearer one", "bearer two"):
        headers = {"Host": "turnstile.example", "Authorization": authorization}
        assert (await guarded.http.get("/api/v1/executions", headers=headers)).status_code == 200


async def test_readiness_says_which_server_is_unreachable_and_why(api: Served) -> None:
    well = await api.http.get("/readyz")
    assert (well.status_code, well.json()) == (
        200,
        {"status": "ready", "version": turnstile.__version__, "parts": {"database": None, "broker": None}},
    )
    api.parts["broker"] = "connection refused"
    ill = await api.http.get("/readyz")
    assert (ill.status_code, ill.json()["code"]) == (503, "unavailable")
    assert ill.json()["parts"] == api.parts
    assert ill.json()["detail"].startswith("broker: connection refused; 'executor doctor' ")
    assert ill.headers["retry-after"]
    assert (await api.http.get("/livez")).json() == {"status": "alive"}


async def test_the_frameworks_own_errors_are_problems_too(api: Served) -> None:
    for method, path, status, code in (
        ("GET", "/no/such", 404, "not_found"),
        ("DELETE", "/api/v1/executions", 405, "invalid_message"),
        ("GET", "/api/v1/executions/x", 422, "invalid_message"),
    ):
        answer = await api.http.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


async def test_a_bug_is_a_problem_without_details(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(api.installation.inbox, "decide", broken)
    answer = await api.http.post("/api/v1/executions", json={"action_ref": "a.b"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text


async def test_a_body_that_never_ends_is_not_waited_for(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_ARRIVAL_TIMEOUT_SECONDS", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    answer = await api.http.post("/api/v1/executions", content=endless())
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")


async def test_the_openapi_document_is_complete(api: Served) -> None:
    described = (await api.http.get("/openapi.json")).json()
    assert (await api.http.get("/docs")).status_code == 200
    jsonschema_rs.validate(OPENAPI_31, described)
    names = [each["operationId"] for ways in described["paths"].values() for each in ways.values()]
    assert len(names) == len(set(names))
    # They name the methods of generated clients: another name breaks programs.
    assert "post_executions_api_v1_executions_post" in names
    schemas = described["components"]["schemas"]
    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in schemas
    submit = described["paths"]["/api/v1/executions"]["post"]
    assert set(submit["requestBody"]["content"]["application/json"]["examples"]) == {"one", "list"}
    assert {"200", "202", "409", "413", "422", "429", "503"} <= set(submit["responses"])
    assert not any(path.startswith("/actions") for path in described["paths"])


async def test_every_example_is_accepted_by_its_schema(api: Served) -> None:
    described = (await api.http.get("/openapi.json")).json()
    tried = 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary"), f"{method} {path}"
            for body in [operation.get("requestBody", {}), *operation["responses"].values()]:
                for media_type, content in body.get("content", {}).items():
                    if media_type not in JSON_BODIES:
                        continue
                    values = [one["value"] for one in content.get("examples", {}).values()]
                    values += [content["example"]] if "example" in content else []
                    schema = {**content["schema"], "components": described["components"]}
                    for value in values:
                        jsonschema_rs.validate(schema, value)
                        tried += 1
    assert tried >= 9


def references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for part in value.values() for found in references(part)]
    return [found for part in value for found in references(part)] if isinstance(value, list) else []
