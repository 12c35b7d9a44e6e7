"""Conditional requests for definitions of every kind."""

import pytest

from tests.support.served import Served

KINDS = ("actions/a.b", "resources/cad", "pools/gpu")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    return f"/api/v1/{request.param}"


async def test_an_unchanged_definition_is_not_sent_again(api: Served, url: str) -> None:
    etag = (await api.http.put(url, json={})).headers["etag"]
    for header in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = await api.http.get(url, headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await api.http.get(url, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_a_change_of_an_outdated_state_is_refused(api: Served, url: str) -> None:
    changing = [("PUT", "", {"paused": False}), ("PATCH", "", {"paused": False}), ("POST", "/resume", None)]
    # A pool ends with the last action and worker that name it.
    changing += [] if "pools" in url else [("DELETE", "", None)]
    for method, rest, body in changing:
        seen = (await api.http.put(url, json={})).headers["etag"]
        current = await api.http.post(f"{url}/pause")
        answer = await api.http.request(method, url + rest, json=body, headers={"If-Match": seen})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert "If-Match" in answer.json()["detail"]
        assert (await api.http.get(url)).headers["etag"] == current.headers["etag"]
        headers = {"If-Match": "*" if method == "PUT" else f'"x", {current.headers["etag"]}'}
        assert (await api.http.request(method, url + rest, json=body, headers=headers)).status_code == 200


async def test_if_match_and_if_none_match_decide_between_create_and_replace(api: Served, url: str) -> None:
    missing = await api.http.put(url, json={}, headers={"If-Match": "*"})
    assert (missing.status_code, missing.json()["code"]) == (412, "precondition_failed")
    created = await api.http.put(url, json={}, headers={"If-None-Match": "*"})
    assert created.status_code == 200
    exists = await api.http.put(url, json={"paused": True}, headers={"If-None-Match": "*"})
    assert (exists.status_code, exists.json()["code"]) == (412, "precondition_failed")
    assert "If-None-Match" in exists.json()["detail"]
    assert not (await api.http.get(url)).json()["paused"]
