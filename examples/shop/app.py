"""The shop: an order and its executions are stored in one transaction, never one without the other.

uvicorn --factory examples.shop.app:create_app, with TURNSTILE_DATABASE_URL and TURNSTILE_API_URL
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from examples.shop.actions import Payment, charge, leaflet
from examples.shop.store import PRICES_CENTS, Article, Order, create_tables, engine_of
from turnstile import AsyncClient, use_client


class NewOrder(BaseModel):
    """What a customer sends."""

    customer_id: int
    articles: list[str] = Field(min_length=1, examples=[["tea", "pot"]])
    card: str = Field(pattern=r"^\d{4}$", examples=["4242"])


class Step(BaseModel):
    """What became of one execution of an order."""

    execution_id: int | None = None
    status: str
    progress: str | None = None
    result: Any = None
    error: str | None = None


class OrderStatus(BaseModel):
    """An order as its customer sees it."""

    id: int
    customer_id: int
    articles: list[str]
    charge: Step
    leaflet: Step


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database and the client at the start, so that a wrong setting ends the start."""
    engine = engine_of(os.environ["TURNSTILE_DATABASE_URL"])
    try:
        await create_tables(engine)
        async with AsyncClient.from_env() as client:
            with use_client(client):
                app.state.engine, app.state.client = engine, client
                yield
    finally:
        await engine.dispose()


async def session_of(request: Request) -> AsyncIterator[AsyncSession]:
    """Yield a session for one request; what it does not commit is rolled back."""
    async with AsyncSession(request.app.state.engine, expire_on_commit=False) as session:
        yield session


Session = Annotated[AsyncSession, Depends(session_of)]


def create_app() -> FastAPI:
    """Return the application."""
    app = FastAPI(title="Shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place_order(new: NewOrder, session: Session) -> dict[str, int]:
        order = Order(customer_id=new.customer_id, articles=new.articles)
        session.add(order)
        await session.flush()
        payment = Payment(amount_cents=_total(new.articles), card=new.card)
        once = charge.with_options(idempotency_key=f"order-{order.id}", metadata={"order": str(order.id)})
        order.charge_request = await once.submit_in_async(
            session, customer_id=new.customer_id, order_id=order.id, payment=payment
        )
        order.leaflet_request = await leaflet.submit_in_async(session, articles=new.articles)
        for article in sorted(new.articles):
            if not await _take(session, article):
                # Without a commit the charge above was never submitted.
                raise HTTPException(409, f"{article} is sold out")
        await session.commit()
        return {"id": order.id}

    @app.get("/orders/{order_id}")
    async def get_order(order_id: int, request: Request, session: Session) -> OrderStatus:
        order = await session.scalar(select(Order).where(Order.id == order_id))
        if order is None:
            raise HTTPException(404, f"there is no order {order_id}")
        client: AsyncClient = request.app.state.client
        return OrderStatus(
            id=order.id,
            customer_id=order.customer_id,
            articles=order.articles,
            charge=await _step(client, order.charge_request),
            leaflet=await _step(client, order.leaflet_request),
        )

    @app.post("/leaflets", status_code=202)
    async def print_leaflet(articles: list[str]) -> dict[str, int]:
        return {"execution_id": await order_leaflet(articles)}

    return app


async def order_leaflet(articles: list[str]) -> int:
    """Submit a leaflet on its own, before all that wait: a customer stands at the counter."""
    return (await leaflet.with_options(priority=1).submit(articles=articles)).id


def _total(articles: list[str]) -> int:
    for article in articles:
        if article not in PRICES_CENTS:
            raise HTTPException(422, f"articles: there is no {article}; there are {', '.join(PRICES_CENTS)}")
    return sum(PRICES_CENTS[article] for article in articles)


async def _take(session: AsyncSession, article: str) -> bool:
    taken = update(Article).where(Article.name == article, Article.stock > 0).values(stock=Article.stock - 1)
    return bool((await session.execute(taken.returning(Article.name))).scalar_one_or_none())


async def _step(client: AsyncClient, request_id: UUID | None) -> Step:
    """Find the execution of a request, and what it has come to."""
    assert request_id is not None, "a stored order has both"
    submission = await client.submission(request_id)
    if submission.execution_id is None:
        return Step(status=submission.status, error=submission.message)
    execution = await client.get(submission.execution_id)
    error, progress = execution.error, execution.progress
    return Step(
        execution_id=execution.id,
        status=execution.status,
        progress=None if progress is None else f"{progress.done:g} of {progress.total:g}: {progress.message}",
        result=execution.result,
        error=None if error is None else f"{error.type}: {error.message}",
    )
