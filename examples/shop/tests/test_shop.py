"""The shop with its worker, on private servers. The fixture `turnstile` is empty when a test begins."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from examples.shop.actions import BUSY_AT_FIRST
from examples.shop.server import running_shop
from turnstile.testing import Installation


@pytest.fixture
def shop(turnstile: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    for name, value in turnstile.environment.items():
        monkeypatch.setenv(name, value)
    with running_shop() as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def place(shop: httpx.Client, *articles: str, customer_id: int = 7, card: str = "4242") -> int:
    answer = shop.post("/orders", json={"customer_id": customer_id, "articles": articles, "card": card})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def step(shop: httpx.Client, turnstile: Installation, order_id: int, name: str) -> Any:
    """Return a step of an order when its execution has ended."""
    while (found := shop.get(f"/orders/{order_id}").json()[name])["execution_id"] is None:
        assert found["status"] == "pending", found
    turnstile.client.wait(found["execution_id"], timeout="20s")
    return shop.get(f"/orders/{order_id}").json()[name]


def test_an_order_is_charged_once_and_has_a_leaflet(shop: httpx.Client, turnstile: Installation) -> None:
    order_id = place(shop, "tea", "pot")
    charged = step(shop, turnstile, order_id, "charge")
    assert (charged["status"], charged["result"]["amount_cents"]) == ("completed", 2950)
    # The last progress may be shown a moment after the end.
    while (leaflet := step(shop, turnstile, order_id, "leaflet"))["progress"] != "2 of 2: written":
        assert leaflet["status"] == "completed"
    assert leaflet["result"]["lines"][0] == "tea: cup, honey"
    found = turnstile.client.list(action_ref="shop.charge").items
    assert [(each.idempotency_key, each.status) for each in found] == [(f"order-{order_id}", "completed")]


def test_an_order_that_is_rolled_back_charges_nobody(shop: httpx.Client, turnstile: Installation) -> None:
    answer = shop.post("/orders", json={"customer_id": 7, "articles": ["pot"] * 101, "card": "4242"})
    assert (answer.status_code, answer.json()["detail"]) == (409, "pot is sold out")
    # A later order is admitted, so an earlier one would have been, too.
    step(shop, turnstile, place(shop, "tea"), "charge")
    assert len(turnstile.client.list(action_ref="shop.charge").items) == 1


def test_charges_of_one_customer_do_not_wait_for_another(shop: httpx.Client, turnstile: Installation) -> None:
    turnstile.client.change_action("shop.charge", paused=True)
    orders = [place(shop, "tea", customer_id=customer_id) for customer_id in (7, 8, 7)]
    turnstile.client.resume("shop.charge")
    for order_id in orders:
        assert step(shop, turnstile, order_id, "charge")["status"] == "completed"
    started = {
        each.parameters["order_id"]: each for each in turnstile.client.list(action_ref="shop.charge").items
    }
    first, last = started[orders[0]], started[orders[2]]
    assert first.completed_at is not None
    assert last.started_at is not None
    assert first.completed_at <= last.started_at


def test_a_busy_bank_is_asked_again(shop: httpx.Client, turnstile: Installation) -> None:
    charged = step(shop, turnstile, place(shop, "coffee", card=BUSY_AT_FIRST), "charge")
    assert charged["result"]["attempt"] == 2


def test_each_process_loads_the_model_once(shop: httpx.Client, turnstile: Installation) -> None:
    orders = [place(shop, "tea", customer_id=customer_id) for customer_id in range(6)]
    leaflets = [step(shop, turnstile, order_id, "leaflet")["result"] for order_id in orders]
    loads = {(each["process"], each["model_loaded_at"]) for each in leaflets}
    # At most two are written at once, so a process writes several.
    assert len(loads) == len({process for process, _ in loads}) < len(leaflets)
