"""Pools over HTTP: order, weights, pause, the queue; why an execution waits there (P10)."""

from tests.support.served import Served
from tests.support.traffic import until

URL = "/api/v1/pools/default"


async def has_capacity(api: Served) -> bool:
    return bool((await api.get("/pools/default"))["capacity"])


async def test_settings_are_changed_and_read(api: Served) -> None:
    await api.define("a.b")
    api.join()
    await until(lambda: has_capacity(api), "the worker has joined")
    answer = await api.http.patch(URL, json={"order": "arrival", "weights": {"a.b": 3, "gone": 2}})
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    assert (changed["order"], changed["weights"], changed["paused"]) == (
        "arrival", {"a.b": 3, "gone": 2}, False
    )  # fmt: skip
    assert changed["action_weights"] == [{"action_ref": "a.b", "weight": 3, "served": True}]
    assert changed["warnings"] == ["gone has a weight, and is not in this pool"]
    # The weights that are not given stay; 1 is the default.
    assert (await api.http.patch(URL, json={"weights": {"gone": 1}})).json()["weights"] == {"a.b": 3}
    assert (await api.http.post(f"{URL}/pause")).json()["paused"]
    assert not (await api.http.post(f"{URL}/resume")).json()["paused"]
    created = (await api.http.put("/api/v1/pools/gpu", json={"weights": {"a.b": 2}})).json()
    assert (created["order"], created["weights"], created["capacity"]) == ("fair", {"a.b": 2}, 0)
    page = await api.get("/pools", limit=1)
    rest = await api.get("/pools", limit=1, cursor=page["next_cursor"])
    assert [item["name"] for item in (*page["items"], *rest["items"])] == ["default", "gpu"]
    assert rest["next_cursor"] is None
    changes = (await api.get("/pools/default/changes"))["items"]
    assert [each["change"] for each in changes] == ["resumed", "paused", "changed", "changed"]
    log = (await api.get("/audit-log", subject_kind="pool", subject="default"))["items"]
    assert [each["verb"] for each in log] == ["resumed", "paused", "changed", "changed"]


async def test_invalid_settings_and_unknown_pools_are_refused(api: Served) -> None:
    for body, field in (
        ({"weights": {"a.b": 0}}, "weights.a.b"),
        ({"weights": {"a b": 2}}, "weights"),
        ({"order": "random"}, "order"),
        ({"capacity": 4}, "capacity"),
    ):
        answer = await api.http.put(URL, json=body)
        assert answer.status_code in (400, 422)
        assert field in answer.json()["detail"]
    for method, path in (("GET", ""), ("PATCH", ""), ("POST", "/pause"), ("GET", "/queue")):
        answer = await api.http.request(
            method, f"/api/v1/pools/none{path}", json={} if method == "PATCH" else None
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await api.http.get("/api/v1/pools/a%20b")).status_code == 404


async def test_the_settings_of_pools_are_shown_while_no_executor_leads(api: Served) -> None:
    await api.http.put(URL, json={"order": "arrival"})
    await api.leader.kill()
    shown = await api.get("/pools/default")
    assert (shown["order"], shown["capacity"], shown["waiting"]) == ("arrival", None, None)
    answer = await api.http.get(f"{URL}/queue")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
