"""Every route is listed with a role, and requires it."""

from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
import pytest_asyncio
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr

from tests.support.served import Served, serve
from turnstile.executor.api.auth import EXCEPTIONS, READING, right_to, route_of, templates
from turnstile.executor.api.bodies import LIST_BYTES_MAX
from turnstile.executor.api.paging import PAGE_MAX
from turnstile.executor.api.problems import PREFIX
from turnstile.executor.api_tokens import Role
from turnstile.executor.settings import ExecutorSettings

_TOKENS = "r:read:reading,s:submit:submitting,o:operate:operating,a:admin:administering"
_TOKEN_OF = {
    Role.READ: "reading",
    Role.SUBMIT: "submitting",
    Role.OPERATE: "operating",
    Role.ADMIN: "administering",
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(module_urls: tuple[str, str]) -> AsyncIterator[Served]:
    async with serve(module_urls[0], ExecutorSettings(api_tokens=SecretStr(_TOKENS))) as served:
        yield served


def routes(served: Served) -> Iterator[tuple[str, str]]:
    """Every method and path that the application answers, with the prefix where it has one."""
    for context in iter_route_contexts(served.app.routes):
        for method in sorted((context.methods or {"GET"}) - {"HEAD"}):
            assert context.path is not None
            yield method, context.path


def concrete(path: str) -> str:
    return "/".join("1" if step.startswith("{") else step for step in path.split("/"))


async def status_of(served: Served, method: str, path: str, token: str | None) -> int:
    """Request, and return the status; a stream is not read to its end."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return (await served.http.request(method, concrete(path), headers=headers, content=b"{}")).status_code


async def test_the_table_of_exceptions_names_existing_routes_only(api: Served) -> None:
    assert EXCEPTIONS.keys() - set(templates(api.app)) == set()


async def test_every_route_that_changes_something_requires_more_than_the_role_read(api: Served) -> None:
    for method, path in routes(api):
        (role, limit), _ = route_of(method, concrete(path))
        assert (role, limit) == right_to(method, path.removeprefix(PREFIX))
        # A worker's question: it changes nothing but how long a reclaim waits while the broker is out.
        # The preview of a schedule that is not stored changes nothing.
        if method not in READING and not path.endswith(("/no-reclaim", "/schedules/occurrences")):
            assert role is not None
            assert role > Role.READ


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("POST", "/api/v1/no/such", Role.OPERATE),
        ("GET", "/no/such", Role.READ),
        ("HEAD", "/api/v1/executions/7", Role.READ),
        ("HEAD", "/livez", None),
        ("POST", "/api/v1/executions/cancel", Role.OPERATE),
        ("POST", "/api/v1/executions/7/cancel", Role.SUBMIT),
        ("POST", "/api/v1/executions/7/cancel/", Role.OPERATE),
        ("DELETE", "/api/v1/executions", Role.OPERATE),
    ],
)
async def test_a_route_that_is_not_listed_requires_the_highest_role(
    method: str, path: str, role: Role | None
) -> None:
    assert route_of(method, path)[0].role is role


async def test_each_route_requires_its_role(api: Served) -> None:
    for method, path in routes(api):
        role = route_of(method, concrete(path))[0].role
        if role is None:
            continue
        assert await status_of(api, method, path, None) == 401, (method, path)
        for lower in Role:
            if lower < role:
                assert await status_of(api, method, path, _TOKEN_OF[lower]) == 403, (method, path, lower)


async def test_whoami_names_the_routes_that_are_refused(api: Served) -> None:
    for role, token in _TOKEN_OF.items():
        headers = {"Authorization": f"Bearer {token}"}
        shown = (await api.http.get(f"{PREFIX}/whoami", headers=headers)).json()
        assert (shown["name"], shown["role"], shown["scope"]) == (role.word[0], role.word, None)
        # It is one of the settings.
        assert shown["id"] is None
        for method, path in routes(api):
            needed = route_of(method, concrete(path))[0].role
            reason = shown["refused"].get(f"{method} {path.removeprefix(PREFIX)}")
            assert (reason is not None) == (needed is not None and role < needed), (method, path)


async def test_a_forbidden_caller_learns_the_required_role(api: Served) -> None:
    answer = await api.http.post(
        f"{PREFIX}/executions", json={"action_ref": "a"}, headers={"Authorization": "Bearer reading"}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "role 'submit'; that of 'r' has 'read'" in answer.json()["detail"]


async def test_every_route_bounds_its_body(api: Served) -> None:
    """A route that reads a body answers 413 to a body above the bound of every route."""
    for method, path in routes(api):
        if method in READING:
            continue
        read_bytes = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal read_bytes
            while read_bytes <= LIST_BYTES_MAX:
                read_bytes += 1 << 20
                yield b" " * (1 << 20)

        answer = await api.http.request(
            method,
            concrete(path),
            content=endless(),
            headers={"Authorization": "Bearer operating", "Content-Type": "application/json"},
        )
        if read_bytes:
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large"), (method, path)


async def test_every_list_bounds_its_page(api: Served) -> None:
    get = partial(api.http.get, headers={"Authorization": "Bearer administering"})
    described = (await get("/openapi.json")).json()
    lists = [
        path
        for path, methods in described["paths"].items()
        if any(parameter["name"] == "limit" for parameter in methods.get("get", {}).get("parameters", ()))
    ]
    assert {f"{PREFIX}/{name}" for name in ("executions", "actions", "workers", "dead-letters")} <= set(lists)
    for path in lists:
        for limit in (0, PAGE_MAX + 1, "all"):
            answer = await get(concrete(path), params={"limit": limit})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message"), path
