"""The actions and what submits them, without servers."""

from examples.shop.actions import BUSY_AT_FIRST, DECLINED, charge, leaflet
from examples.shop.app import order_leaflet
from turnstile.testing import FakeClient, RunOptions, run, run_async


def test_a_charge_gives_a_receipt() -> None:
    ran = run(charge, customer_id=7, order_id=1, payment={"amount_cents": 450, "card": "4242"}).expect()
    assert ran.result == {"order_id": 1, "amount_cents": 450, "attempt": 1}
    assert "charging 450 cents for order 1" in ran.log


def test_a_declined_card_is_not_tried_again() -> None:
    ran = run(charge, customer_id=7, order_id=1, payment={"amount_cents": 450, "card": DECLINED})
    assert (ran.status, ran.error_message, ran.retryable) == ("failed", "the card 0002 is declined", False)


def test_a_busy_bank_is_asked_again_a_second_later() -> None:
    payment = {"amount_cents": 450, "card": BUSY_AT_FIRST}
    first = run(charge, customer_id=7, order_id=1, payment=payment)
    assert (first.status, first.retryable, first.retry_delay_seconds) == ("failed", True, 1)
    second = run(charge, options=RunOptions(attempt=2), customer_id=7, order_id=1, payment=payment)
    assert second.expect().result["attempt"] == 2


def test_a_payment_of_nothing_is_refused() -> None:
    ran = run(charge, customer_id=7, order_id=1, payment={"amount_cents": 0, "card": "4242"})
    assert (ran.status, ran.error_type) == ("failed", "InvalidParameters")


def test_a_leaflet_names_what_others_bought() -> None:
    ran = run(leaflet, articles=["tea", "coffee"]).expect()
    assert ran.result["lines"] == ["tea: cup, honey", "coffee: filter, cup"]
    assert [each.message for each in ran.progress][1:] == ["looking for what goes with coffee", "written"]


async def test_a_leaflet_for_the_counter_goes_first(turnstile_fake: FakeClient) -> None:
    turnstile_fake.completes("shop.leaflet", (await run_async(leaflet, articles=["tea"])).result)
    execution_id = await order_leaflet(["tea"])
    (submitted,) = turnstile_fake.submitted
    assert (submitted.id, submitted.request.priority, submitted.parameters) == (
        execution_id,
        1,
        {"articles": ["tea"]},
    )
