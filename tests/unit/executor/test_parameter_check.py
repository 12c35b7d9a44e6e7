"""The check of parameters before admission: its sentences, and that it refuses nothing that a worker runs."""

import dataclasses
import datetime as d
import decimal
import enum
import ipaddress
import json
import pathlib
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from turnstile.executor.parameter_check import SchemaChecker
from turnstile.worker.context import Context
from turnstile.worker.parameters import InvalidParameters, ParametersReader, schemas_of_function


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Loose(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> "Loose":
        return cls.A


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    a: int
    b: str


class Customer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: int
    name: str = Field(default="", min_length=2)


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    customer_id: int = Field(alias="customerId")


class Trimmed(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, coerce_numbers_to_str=True)
    code: str = Field(max_length=3, pattern="^a+$")


class Prepared(BaseModel):
    id: int

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"id": value} if isinstance(value, str) else value


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tail: bool


ANNOTATIONS: list[Any] = [
    int, float, bool, str, bytes, None, Any, int | None, str | int | None, list[int], set[int],
    frozenset[str], tuple[int, str], tuple[int, ...], dict[str, int], dict[int, float], decimal.Decimal,
    d.datetime, d.date, d.time, d.timedelta, uuid.UUID, pathlib.Path, ipaddress.IPv4Address, Color, Level,
    Loose, Literal["a", 1, True], Point, Pair, Customer, Renamed, Trimmed, Prepared,
    Customer | Point | None, Annotated[Cat | Dog, Field(discriminator="kind")], Annotated[int, Field(ge=2,
    lt=9)], Annotated[str, Field(pattern="^a+$", max_length=3)], Annotated[list[int], Field(min_length=1,
    max_length=2)], Annotated[set[int], Field(max_length=2)], Annotated[float, Field(multiple_of=0.1)],
    Annotated[decimal.Decimal, Field(max_digits=3, ge=1)], Annotated[int, BeforeValidator(len)],
    Annotated[Literal[1, 2], Field()],
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 5.0, 1.5, -3, 10**30, 0.3, "", "a", "aaa", "aaaa", " aaa ", "abc", "1",
    " 1 ", "1.0", "+7", "1_000", "1.5", "1e5", "nan", "-inf", "true", "No", "off", "T", "red", "2030-01-31",
    "2030-01-31T09:00:00Z", "2030-01-31 09:00", "1700000000", 1700000000, 1.7e9, "09:00", "PT1H", "P1D",
    "3 days, 01:00:00", "10.0.0.1", "0f8fad5b-d9cb-469f-a165-70867728950e",
    "urn:uuid:0f8fad5b-d9cb-469f-a165-70867728950e", [], [1], [1, 1], [1, 1, 1], [1, "a"], ["1", "2"], {},
    {"a": 1}, {"1": "2"}, {"x": 1}, {"x": "1", "y": "2"}, {"a": 1, "b": "x"}, {"id": 7}, {"id": "7",
    "name": "ab"}, {"id": 7, "name": "a"}, {"id": 7, "more": 1}, {"customer_id": 1}, {"customerId": 1},
    {"code": " a "}, {"code": 1}, {"kind": "cat", "lives": 9}, {"kind": "dog", "tail": 1}, {"kind": "cow"},
]  # fmt: skip


def function_of(annotation: Any) -> Callable[..., Any]:
    def function(value: Any) -> None: ...

    function.__annotations__ = {"value": annotation}
    return function


def checker_of(function: Callable[..., Any]) -> SchemaChecker:
    schemas = schemas_of_function(function)
    assert schemas.parameters is not None, schemas.trouble
    return SchemaChecker(schemas.parameters, is_converted=True)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_the_door_refuses_nothing_that_the_worker_accepts(annotation: Any) -> None:
    function = function_of(annotation)
    reader, checker = ParametersReader(function), checker_of(function)
    for value in VALUES:
        try:
            reader.read(json.dumps({"value": value}), lambda: pytest.fail("no context"))
        except InvalidParameters:
            continue
        except TypeError:
            continue  # A validator of the user's fails.
        assert checker.fits({"value": value}), value
        assert checker.reasons({"value": value}) == []


def order(
    context: Context,
    customer_id: int,
    *,
    color: Color = Color.RED,
    when: d.datetime | None = None,
    amount: Annotated[int, Field(ge=1)] = 1,
    customer: Customer | None = None,
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
    points: list[Point] = [],  # noqa: B006
) -> list[Point]:
    return points


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "parameters.customer_id: required, but missing"),
        ({"customer_id": "x"}, "parameters.customer_id: expected a whole number"),
        ({"customer_id": 1.5}, "parameters.customer_id: expected a whole number"),
        ({"color": "green"}, "parameters.color: expected 'red' or 'blue'"),
        ({"when": "tomorrow"}, "parameters.when: expected a time like 2030-01-31T09:00:00Z or null"),
        ({"amount": 0}, "parameters.amount: expected 1 or more"),
        ({"customer": 3}, "parameters.customer: expected an object or null"),
        ({"customer": {"id": 1, "name": "x"}}, "parameters.customer.name: expected 2 characters or more"),
        ({"customer": {"id": 1, "nam": "xy"}}, "parameters.customer.nam: unknown field; did you mean name?"),
        ({"pet": {"kind": "cow"}}, "parameters.pet.kind: expected 'cat' or 'dog'"),
        ({"pet": {"kind": "cat", "lives": "many"}}, "parameters.pet.lives: expected a whole number"),
        ({"points": [{"x": 1}, {"x": "q"}]}, "parameters.points.1.x: expected a whole number"),
        ({"points": {}}, "parameters.points: expected a list"),
        (
            {"custmer_id": 1},
            "parameters.custmer_id: unknown parameter; did you mean customer_id?; known: amount, color, "
            "customer, customer_id, pet, points, when",
        ),
    ],
)
def test_a_refusal_names_field_and_remedy(parameters: dict[str, Any], reason: str) -> None:
    whole = parameters if parameters == {} else {"customer_id": 1, **parameters}
    checker = checker_of(order)
    assert not checker.fits(whole)
    assert any(each.startswith(reason) for each in checker.reasons(whole)), checker.reasons(whole)


def test_a_function_that_takes_any_keyword_takes_any_parameter() -> None:
    def function(a: int, **more: Any) -> None: ...

    assert checker_of(function).fits({"a": 1, "b": 2})


def test_a_refusal_names_at_most_five_fields() -> None:
    def function(values: list[int]) -> None: ...

    assert len(checker_of(function).reasons({"values": ["x"] * 20})) == 5


def test_of_a_large_body_the_first_wrong_part_is_named_in_a_short_time() -> None:
    def function(orders: dict[str, list[Customer | Point]], note: str = "") -> None: ...

    checker = checker_of(function)
    orders: list[Any] = [{"id": number} for number in range(20_000)]
    for wrong, reason in [
        ({"orders": {"a": [*orders, {"id": 1, "name": "x"}]}}, "orders.a.20000.name: expected 2 characters"),
        ({"orders": {"a": orders, "b": ["x"] * 60_000}}, "parameters.orders.b.0: expected an object"),
        ({"orders": {"a": orders}, "nte": ""}, "parameters.nte: unknown parameter; did you mean note?"),
        ({"order": {"a": orders}}, "parameters.orders: required, but missing"),
    ]:
        began = time.process_time()
        assert reason in checker.reasons(wrong)[0]
        assert time.process_time() - began < 1


def test_a_given_schema_is_checked_as_it_is_written() -> None:
    checker = SchemaChecker(
        {"properties": {"id": {"type": "integer"}, "at": {"format": "email"}}}, is_converted=False
    )
    assert checker.reasons({"id": "17"}) == ["parameters.id: expected a whole number"]
    assert checker.fits({"id": 17, "at": "no address"})


def test_the_schema_of_a_function_shows_defaults_and_the_result() -> None:
    schemas = schemas_of_function(order)
    assert schemas.parameters is not None
    assert schemas.result is not None
    properties = schemas.parameters["properties"]
    assert properties["color"] == {"$ref": "#/$defs/Color", "default": "red"}
    assert (properties["amount"], schemas.parameters["required"]) == (
        {"default": 1, "minimum": 1, "type": "integer"},
        ["customer_id"],
    )
    assert schemas.parameters["additionalProperties"] is False
    assert (schemas.result["type"], schemas.result["items"]) == ("array", {"$ref": "#/$defs/Point"})


def test_a_schema_that_an_executor_could_not_use_is_left_out_with_the_reason() -> None:
    names = tuple(f"a value of forty characters, number {n:05}" for n in range(2000))

    def function(value: Any) -> int:
        return 0

    function.__annotations__["value"] = Literal[names]
    schemas = schemas_of_function(function)
    assert schemas.parameters is None
    assert schemas.trouble is not None
    assert "at most 65536 are accepted" in schemas.trouble
    assert schemas.result == {"type": "integer"}
