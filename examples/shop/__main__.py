"""Starts the shop with a private Turnstile, plays some customers, checks what was promised, and ends.

python -m examples.shop [--stay]
"""

import os
import signal
import sys
import threading
import time
from itertools import pairwise
from typing import Any, Final

import httpx

from examples.shop.actions import BUSY_AT_FIRST, DECLINED
from examples.shop.server import running_shop
from turnstile.testing import installation

_ENDS: Final = ("completed", "failed", "timeout", "cancelled", "expired", "abandoned", "rejected")
_ORDERS: Final[tuple[dict[str, Any], ...]] = (
    {"customer_id": 7, "articles": ["tea", "pot"], "card": "4242"},
    {"customer_id": 7, "articles": ["coffee"], "card": BUSY_AT_FIRST},
    {"customer_id": 7, "articles": ["honey"], "card": "4242"},
    {"customer_id": 8, "articles": ["coffee", "filter", "cup"], "card": "4242"},
    {"customer_id": 9, "articles": ["grinder"], "card": DECLINED},
    {"customer_id": 9, "articles": ["pot"] * 101, "card": "4242"},
)


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 if every check passed."""
    print("Starting PostgreSQL, RabbitMQ, an executor and a worker")
    with installation("examples.shop.actions") as turnstile:
        os.environ.update(turnstile.environment)
        with running_shop() as shop_url:
            print(f"Shop       {shop_url}/docs\nDashboard  {turnstile.http_url}/\n")
            if "--stay" in arguments:
                _stay()
                return 0
            with httpx.Client(base_url=shop_url, timeout=30) as http:
                return _play(http, turnstile.http_url)


def _stay() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    print("Ctrl-C stops everything and deletes its data.")
    stopped.wait()


def _play(http: httpx.Client, turnstile_url: str) -> int:
    placed = []
    for order in _ORDERS:
        answer = http.post("/orders", json=order)
        if answer.status_code == 201:
            placed.append(answer.json()["id"])
        else:
            print(f"refused    customer {order['customer_id']}: {answer.json()['detail']}")
    orders = [_ended(http, order_id) for order_id in placed]
    for order in orders:
        charged, leaflet = order["charge"], order["leaflet"]
        receipt, lines = charged["result"], "; ".join(leaflet["result"]["lines"])
        bill = f"charged {receipt['amount_cents'] / 100:.2f}" if receipt else charged["error"]
        print(f"order {order['id']:<4} customer {order['customer_id']}: {bill}; {lines}")
    with httpx.Client(base_url=f"{turnstile_url}/api/v1", timeout=30) as api:
        executions = api.get("/executions", params={"limit": 100}).json()["items"]
    print()
    checks = {
        "each order that was stored is charged once, and no other": _charged_once(executions, orders),
        "the charges of a customer ran one at a time, in the order of the orders": _in_order(executions),
        "a declined card is not tried again, a busy bank is": _attempts(executions),
        "the model was loaded once in each process": _loaded_once(orders),
    }
    for name, passed in checks.items():
        print(f"{'PASS' if passed else 'FAIL'}  {name}")
    return 0 if all(checks.values()) else 1


def _ended(http: httpx.Client, order_id: int) -> dict[str, Any]:
    """Ask for an order until both of its executions have ended, for at most a minute."""
    deadline = time.monotonic() + 60
    while True:
        order: dict[str, Any] = http.get(f"/orders/{order_id}").raise_for_status().json()
        if all(order[step]["status"] in _ENDS for step in ("charge", "leaflet")):
            return order
        if time.monotonic() > deadline:
            raise SystemExit(f"order {order_id} does not end: {order}")
        time.sleep(0.05)


def _charges(executions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        (each for each in executions if each["action_ref"] == "shop.charge"), key=lambda each: int(each["id"])
    )


def _charged_once(executions: list[dict[str, Any]], orders: list[dict[str, Any]]) -> bool:
    return sorted(int(each["metadata"]["order"]) for each in _charges(executions)) == [
        each["id"] for each in orders
    ]


def _in_order(executions: list[dict[str, Any]]) -> bool:
    charges = _charges(executions)
    return all(
        before["parameters"]["order_id"] < after["parameters"]["order_id"]
        # What waits for its next attempt lets the next one run.
        and (before["attempt"] > 1 or before["completed_at"] <= after["started_at"])
        for customer in {each["concurrency_key"] for each in charges}
        for before, after in pairwise(each for each in charges if each["concurrency_key"] == customer)
    )


def _attempts(executions: list[dict[str, Any]]) -> bool:
    attempts = {each["parameters"]["payment"]["card"]: each["attempt"] for each in _charges(executions)}
    return (attempts[DECLINED], attempts[BUSY_AT_FIRST]) == (1, 2)


def _loaded_once(orders: list[dict[str, Any]]) -> bool:
    loads = {
        (each["leaflet"]["result"]["process"], each["leaflet"]["result"]["model_loaded_at"])
        for each in orders
    }
    return len(loads) == len({process for process, _ in loads})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
