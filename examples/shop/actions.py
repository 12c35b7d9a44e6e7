"""What the worker of the shop runs: a charge per order, and a leaflet with recommendations.

worker serve --actions examples.shop.actions
"""

import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

from pydantic import BaseModel, Field

from examples.shop.recommender import Recommender
from turnstile import Context, PermanentError, TemporaryError, action, on_start

DECLINED, BUSY_AT_FIRST = "0002", "0503"
"""Cards for trials, as payment providers have them."""


class Payment(BaseModel):
    """What is charged, and to which card."""

    amount_cents: int = Field(gt=0)
    card: str = Field(pattern=r"^\d{4}$", description="The last four digits.")


class Receipt(BaseModel):
    """What the bank says."""

    order_id: int
    amount_cents: int
    attempt: int


class Leaflet(BaseModel):
    """A leaflet for a parcel."""

    lines: list[str]
    process: int
    model_loaded_at: datetime


@on_start
def load_recommender(state: SimpleNamespace) -> None:
    """Load the model once in each process, and not in every attempt."""
    state.recommender = Recommender.load(Path(__file__).with_name("baskets.csv"))


# The bank takes one charge per customer at a time; other customers do not wait for it.
@action(
    "shop.charge",
    concurrency_key="/customer_id",
    max_concurrent=1,
    timeout="30s",
    retry={"max_attempts": 4, "delay": "1s", "factor": 2},
)
async def charge(context: Context, customer_id: int, order_id: int, payment: Payment) -> Receipt:
    """Charge an order. A declined card is final; a busy bank is asked again."""
    context.logger.info("charging %d cents for order %d", payment.amount_cents, order_id)
    if payment.card == DECLINED:
        raise PermanentError(f"the card {payment.card} is declined")
    if payment.card == BUSY_AT_FIRST and context.attempt == 1:
        raise TemporaryError("the bank is busy", delay="1s")
    return Receipt(order_id=order_id, amount_cents=payment.amount_cents, attempt=context.attempt)


# A plain function runs in a child process, which has loaded the model at its start.
@action("shop.leaflet", max_concurrent=2, timeout="1m")
def leaflet(context: Context, articles: list[str]) -> Leaflet:
    """Write a leaflet: for each article, what others bought with it."""
    recommender: Recommender = context.state.recommender
    lines = []
    for number, article in enumerate(articles):
        context.progress(number, len(articles), f"looking for what goes with {article}")
        also = recommender.also_bought([article])
        lines.append(f"{article}: {', '.join(also) or 'nothing goes with it'}")
    context.progress(len(articles), len(articles), "written")
    return Leaflet(lines=lines, process=os.getpid(), model_loaded_at=recommender.loaded_at)
