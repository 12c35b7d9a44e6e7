"""The tables of the shop, in a schema of their own in the database that Turnstile uses."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from sqlalchemy import CheckConstraint, MetaData, insert, text
from sqlalchemy.dialects.postgresql import ARRAY, TEXT
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

PRICES_CENTS: Final[Mapping[str, int]] = {
    "tea": 450,
    "coffee": 600,
    "pot": 2500,
    "cup": 800,
    "honey": 700,
    "grinder": 4900,
    "filter": 300,
}
STOCK: Final = 100


class Table(DeclarativeBase):
    """The base of the shop's tables."""

    metadata = MetaData(schema="shop")


class Article(Table):
    """An article and how many are left."""

    __tablename__ = "article"
    __table_args__ = (CheckConstraint("stock >= 0"),)
    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Table):
    """An order, and the requests that were submitted with it."""

    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int]
    articles: Mapped[list[str]] = mapped_column(ARRAY(TEXT))
    charge_request: Mapped[UUID | None]
    leaflet_request: Mapped[UUID | None]


def engine_of(database_url: str) -> AsyncEngine:
    """Return an engine for a URL like postgresql://user@host:port/database."""
    return create_async_engine(database_url.replace("postgresql://", "postgresql+asyncpg://", 1))


async def create_tables(engine: AsyncEngine) -> None:
    """Create the tables and fill the stock, at the first start."""
    async with engine.begin() as connection:
        if await connection.scalar(text("SELECT to_regnamespace('shop') IS NOT NULL")):
            return
        await connection.execute(text("CREATE SCHEMA shop"))
        await connection.run_sync(Table.metadata.create_all)
        await connection.execute(insert(Article), [{"name": name, "stock": STOCK} for name in PRICES_CENTS])
