"""Resources and the settings of keys over HTTP: define, change, pause, delete; what is refused says how."""

from typing import Any
from urllib.parse import quote

from tests.support.served import Served
from turnstile.executor.questions.use import MINUTES

URL = "/api/v1/resources/cad"
ACTION = "/api/v1/actions/a.b"


async def refused(api: Served, method: str, url: str, body: object = None) -> tuple[int, str, str]:
    answer = await api.http.request(method, url, json=body)
    problem = answer.json()
    return answer.status_code, problem["code"], problem["detail"]


async def test_a_resource_comes_back_as_it_was_stored(api: Served) -> None:
    definition = {
        "capacity": 10, "rank": 1, "order": "fair", "rate": {"starts": 100, "per": "1m"}, "paused": True,
    }  # fmt: skip
    stored = (await api.http.put(URL, json=definition)).json()
    assert stored | definition | {"rate": {"starts": 100, "per": 60.0}} == stored
    assert (stored["name"], stored["users"], stored["used_by"]) == ("cad", 0, [])
    del stored["use"]
    assert without_use((await api.http.get(URL)).json()) == stored
    await api.http.put("/api/v1/resources/api", json={})
    assert [item["name"] for item in (await api.get("/resources"))["items"]] == ["api", "cad"]
    page = await api.get("/resources", limit=1)
    rest = await api.get("/resources", limit=1, cursor=page["next_cursor"])
    assert ([*map(without_use, rest["items"])], rest["next_cursor"]) == ([stored], None)


def without_use(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a resource without what changes by itself."""
    return {name: value for name, value in resource.items() if name != "use"}


async def test_a_list_shows_what_is_held_what_waits_and_the_use(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 3})
    await api.define("a.b", max_concurrent=9, uses=[{"resource": "cad", "units": 2}])
    api.join()
    first, _ = await api.submit_many("a.b", 2)
    await api.start(first)
    (shown,) = (await api.get("/resources"))["items"]
    assert (shown["held"], shown["held_waiting"], shown["waiting"]) == (2, 0, 1)
    (pool,) = (await api.get("/pools"))["items"]
    assert [len(each["use"]) for each in (shown, pool)] == [MINUTES] * 2
    await api.leader.kill()
    (shown,) = (await api.get("/resources"))["items"]
    assert (shown["held"], shown["waiting"], shown["use"]) == (None, None, [])


async def test_patch_keeps_the_other_fields_and_put_replaces_them(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 10, "rank": 1})
    changed = (await api.http.patch(URL, json={"capacity": 4})).json()
    assert (changed["capacity"], changed["rank"]) == (4, 1)
    assert (await api.http.post(f"{URL}/pause")).json()["paused"]
    assert not (await api.http.post(f"{URL}/resume")).json()["paused"]
    replaced = (await api.http.put(URL, json={"rank": 2})).json()
    assert (replaced["capacity"], replaced["rank"]) == (None, 2)


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"capacity": -1}, "invalid_message", "capacity"),
    ({"order": "random"}, "invalid_message", "order"),
    ({"rate": {"starts": 1, "per": "2d"}}, "invalid_message", "rate.per: 2d is not between 1ms and 1d"),
    ({"capacty": 1}, "unknown_field", "did you mean capacity?; known are name, capacity"),
    ({"name": "other"}, "invalid_message", "name: "),
]


async def test_an_invalid_resource_is_refused_by_its_field(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 3})
    for body, code, part in INVALID:
        for method in ("PUT", "PATCH"):
            status, found, detail = await refused(api, method, URL, body)
            assert (status, found) == (422, code), body
            assert part in detail
    assert (await api.http.get(URL)).json()["capacity"] == 3


async def test_an_action_shows_its_gates_and_a_resource_its_users(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 10})
    fields = {
        "concurrency_key": "/who", "max_concurrent_total": 20, "order": "fair", "priority_min": 2,
        "rate": {"starts": 10, "per": 1.0}, "uses": [{"resource": "cad", "units": 2, "weight": 3}],
    }  # fmt: skip
    stored = (await api.http.put(ACTION, json=fields)).json()
    assert stored | fields == stored
    shown = (await api.http.get(URL)).json()
    assert (shown["users"], shown["used_by"]) == (1, [{"action_ref": "a.b", "units": 2, "weight": 3}])
    changed = (await api.http.patch(URL, json={"capacity": 1})).json()
    assert changed["warnings"] == ["a.b takes 2 units, the capacity is 1: its executions wait"]
    assert (await api.http.patch(ACTION, json={"paused": True})).json()["uses"] == fields["uses"]


async def test_a_use_without_a_fitting_resource_is_refused_with_the_remedy(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 3})
    for uses, remedy in (
        (["gpu"], "there is no resource 'gpu'; create it: executor resources put gpu --capacity NUMBER"),
        ([{"resource": "cad", "units": 4}], "raise it: executor resources put cad --capacity 4"),
        ([{"resource": "cad", "units": 0}], "uses.0.units"),
        ([{"resource": "cad", "weight": 17}], "uses.0.weight"),
        (["cad", "cad"], "uses: 'cad' is given twice"),
    ):
        status, code, detail = await refused(api, "PUT", ACTION, {"uses": uses})
        assert (status, code) == (422, "invalid_message")
        assert remedy in detail


async def test_a_resource_in_use_is_not_deleted(api: Served) -> None:
    await api.http.put(URL, json={"capacity": 3})
    await api.http.put(ACTION, json={"uses": ["cad"]})
    answer = await api.http.delete(URL)
    assert (answer.status_code, answer.json()["code"]) == (409, "in_use")
    assert answer.json()["used_by"] == ["a.b"]
    assert "'cad' is used by a.b; remove it from the uses" in answer.json()["detail"]
    await api.http.put(ACTION, json={})
    assert (await api.http.delete(URL)).json() == {"name": "cad"}
    changes = (await api.get("/resources/cad/changes"))["items"]
    assert [(each["change"], each["changed_by"]) for each in changes] == [
        ("deleted", "local"), ("created", "local"),
    ]  # fmt: skip


async def test_the_gates_of_an_execution_are_kept_from_the_first_to_the_end(api: Served) -> None:
    api.join()
    for rank, name in enumerate(("first", "then"), start=1):
        assert (
            await api.http.put(f"/api/v1/resources/{name}", json={"capacity": 1, "rank": rank})
        ).is_success
    await api.define("a.b", uses=["first", "then"])
    await api.define("a.then", uses=["then"])
    blocker = (await api.submit("a.then"))["id"]
    await api.until_offered(blocker)
    (one,) = await api.submit_many("a.b", 1)
    steps = (await api.get(f"/executions/{one}"))["gates"]
    assert [(step["gate"], step["units"], step["passed_at"] is None) for step in steps] == [
        ("queue", 1, False), ("resource first", 1, False), ("resource then", 1, True)
    ]  # fmt: skip
    assert steps[1]["arrived_at"] == steps[0]["passed_at"]
    await api.run(blocker)
    await api.until_offered(one)
    granted = (await api.get(f"/executions/{one}"))["gates"]
    assert (granted[:2], granted[2]["passed_at"] is None) == (steps[:2], False)
    await api.run(one)
    assert (await api.get(f"/executions/{one}"))["gates"] == granted


async def test_a_key_gets_its_own_limit_and_weight(api: Served) -> None:
    await api.define("a.b", concurrency_key="/who", max_concurrent=1)
    for key in ("7", "a/b", ".", "..", "a b?c#d", "ü\n", "x" * 512):
        url = f"{ACTION}/keys/{quote(key, safe='').replace('.', '%2E')}"
        assert (await refused(api, "GET", url))[:2] == (404, "not_found")
        stored = (await api.http.put(url, json={"max_concurrent": 5, "weight": 2})).json()
        assert stored == {"concurrency_key": key, "max_concurrent": 5, "has_limit": True, "weight": 2}
        assert (await api.http.get(url)).json() == stored
        weighted = (await api.http.put(url, json={"weight": 3})).json()
        assert weighted == {"concurrency_key": key, "max_concurrent": 1, "has_limit": False, "weight": 3}
        unlimited = (await api.http.put(url, json={"max_concurrent": None})).json()
        assert (unlimited["max_concurrent"], unlimited["has_limit"]) == (None, True)
        assert (await api.get("/actions/a.b/keys"))["items"] == [unlimited]
        assert (await api.http.delete(url)).json() == {"action_ref": "a.b", "concurrency_key": key}
        assert (await refused(api, "DELETE", url))[:2] == (404, "not_found")
        assert (await api.get("/actions/a.b/keys"))["items"] == []
