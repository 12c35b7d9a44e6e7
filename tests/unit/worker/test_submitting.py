"""An action is called like its function, and submitted with its parameters."""

import asyncio
import copy
import functools
import inspect
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, Secret, SecretStr, field_serializer

from tests.unit.worker.conftest import MakeModule
from turnstile.client import AsyncClient, Rejected, Request, Status, Submitted, use_client
from turnstile.client.requests import request_body
from turnstile.testing import run_async
from turnstile.worker import Context, action, command_action, http_action
from turnstile.worker.actions import action_from_entrypoint, load_actions
from turnstile.worker.parameters import parameters_of


class Recording(AsyncClient):
    """Records requests in place of sending them."""

    requests: list[Request]

    async def _submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        accepted = Submitted(execution_id=7, status=Status.QUEUED, position=1, duplicate=False)
        new = list(requests)
        self.requests += new
        return [accepted for _ in new]


@pytest.fixture
def recording() -> Iterator[Recording]:
    client = Recording(http_url="http://127.0.0.1:1")
    client.requests = []
    with use_client(client):
        yield client


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    price: Decimal


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    items: list[Item] = []


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return wrapper


@action("unit.add", max_concurrent=2)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@action("unit.add_async")
async def add_async(context: Context, a: int) -> int:
    return a + context.attempt


@doubled
@action("unit.below")
def below(a: int) -> int:
    return a


@action("unit.above")
@doubled
def above(a: int) -> int:
    return a


@action("unit.order")
async def take(
    order: Order, colour: Colour, due: datetime, path: Path, context: Context | None = None, **prices: Decimal
) -> None: ...


def test_an_action_is_called_and_inspected_like_its_function() -> None:
    assert (add(1), add(a=1, b=5)) == (3, 6)
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add two numbers.", __name__)
    assert str(inspect.signature(add)) == "(a: int, b: int = 2) -> int"
    assert inspect.iscoroutinefunction(add_async)
    assert asyncio.iscoroutinefunction(add_async)
    assert not inspect.iscoroutinefunction(add)
    assert asyncio.run(add_async(context=_context(), a=1)) == 4
    assert (add.ref, repr(add)) == ("unit.add", f"<action 'unit.add': {__name__}.add>")


def test_an_action_is_pickled_by_name_and_copied_as_itself() -> None:
    assert pickle.loads(pickle.dumps(add)) is add
    assert copy.deepcopy([add]) == [add]


def test_decorators_above_and_below_work() -> None:
    assert (below(2), above(2)) == (4, 4)
    assert str(inspect.signature(above)) == "(a: int) -> int"


def test_an_action_in_the_body_of_a_class_is_bound_like_a_function() -> None:
    class Case:
        @action("unit.method")
        def method(self, a: int) -> tuple[object, int]:
            return self, a

    case = Case()
    assert case.method(3) == (case, 3)


def test_one_function_can_be_several_actions(make_module: MakeModule) -> None:
    module = make_module(
        "from turnstile import action\ndef f(x: int): return x\na = action('a')(f)\nb = action('b')(a)\n"
    )
    found = load_actions(module)
    assert [each.definition.ref for each in found] == ["a", "b"]
    assert found[0].function is found[1].function
    assert not hasattr(found[0].function, "submit")
    assert action_from_entrypoint("c", f"{module}:b").function is found[0].function


async def test_parameters_are_written_by_their_types_and_read_by_the_worker(recording: Recording) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    order = Order(orderNumber=7, items=[Item("bolt", Decimal("0.10"))])
    await take.submit(order, Colour.RED, due=due, path=Path("/tmp/x"), extra=Decimal("1.50"))
    (request,) = recording.requests
    assert request.parameters == {
        "order": {"orderNumber": 7, "items": [{"name": "bolt", "price": "0.10"}]},
        "colour": "red",
        "due": "2030-01-01T00:00:00Z",
        "path": "/tmp/x",
        "extra": "1.50",
    }
    read = parameters_of(take.function).read(json.dumps(request.parameters), _context)
    assert (read["order"], read["colour"], read["due"]) == (order, Colour.RED, due)


async def test_options_are_merged_and_leave_the_action_unchanged(recording: Recording) -> None:
    urgent = add.with_options(priority=1, metadata={"who": "me"})
    await urgent.with_options(priority=2, idempotency_key="k").submit(1)
    await add.submit(1)
    first, second = recording.requests
    assert (first.priority, first.idempotency_key, first.metadata) == (2, "k", {"who": "me"})
    assert (second.priority, second.idempotency_key) == (None, None)
    assert urgent(1) == 3


async def test_what_the_worker_would_refuse_is_not_sent(recording: Recording) -> None:
    wrong: Any = add
    with pytest.raises(TypeError, match=r"unit.add: .*'c'; the parameters are \(a: int, b: int = 2\)"):
        await wrong.submit(1, c=3)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        wrong.submit_sync()
    with pytest.raises(Rejected, match=r"invalid_parameters: a: .*number"):
        await wrong.submit("x")
    with pytest.raises(Rejected, match="a: cannot be written as JSON"):
        await wrong.submit(object())
    with pytest.raises(TypeError):
        await add_async.submit(_context(), 1)
    assert recording.requests == []
    handles = await wrong.submit_many([{"a": 1}, {"a": "x"}, {"a": 3}])
    assert [isinstance(each, Rejected) for each in handles] == [False, True, False]
    assert [each.parameters for each in recording.requests] == [{"a": 1}, {"a": 3}]


class Login(BaseModel):
    user: str
    password: SecretStr


class OpenLogin(Login):
    @field_serializer("password", when_used="json")
    def unwrapped(self, password: SecretStr) -> str:
        return password.get_secret_value()


@action("unit.log_in")
async def log_in(
    login: Login | None = None,
    open_login: OpenLogin | None = None,
    tokens: dict[str, list[SecretStr]] | None = None,
    **more: object,
) -> None: ...


async def test_a_secret_that_would_be_sent_as_a_mask_is_refused(recording: Recording) -> None:
    secrets: list[tuple[str, dict[str, Any]]] = [
        ("login.password", {"login": Login(user="me", password=SecretStr("x"))}),
        ("tokens.a.1", {"tokens": {"a": [SecretStr(""), SecretStr("x")]}}),
        ("pin", {"pin": Secret[int](7)}),
    ]
    for path, parameters in secrets:
        with pytest.raises(Rejected, match=f"{path}: a secret .* send a reference .* or annotate str"):
            await log_in.submit(**parameters)
        with pytest.raises(Rejected, match=f"{path}: a secret"):
            await run_async(log_in, **parameters)
    assert recording.requests == []


async def test_a_secret_that_a_serializer_unwraps_is_sent(recording: Recording) -> None:
    await log_in.submit(open_login=OpenLogin(user="me", password=SecretStr("x")))
    assert recording.requests[0].parameters == {"open_login": {"user": "me", "password": "x"}}


def test_a_secret_in_a_request_by_name_is_refused() -> None:
    with pytest.raises(Rejected, match=r"parameters\.login\.1: a secret"):
        request_body(
            Request(action_ref="a", parameters={"login": ["me", SecretStr("x")]}), parameters_bytes_max=1000
        )
    stars = Request(action_ref="a", parameters={"password": "**********"})
    assert b"*****" in request_body(stars, parameters_bytes_max=1000)


async def test_requests_of_an_action_are_submitted_one_by_one_or_as_a_list(recording: Recording) -> None:
    urgent = add.with_options(priority=1)
    handles = await add.submit_many([urgent.request(1), add.request(a=2, b=3)])
    assert [each.id for each in handles if not isinstance(each, Rejected)] == [7, 7]
    handle = await recording.submit(urgent.request(4))
    assert (handle.id, handle.result_type) == (7, int)
    sent = [(each.parameters, each.priority) for each in recording.requests]
    assert sent == [({"a": 1}, 1), ({"a": 2, "b": 3}, None), ({"a": 4}, 1)]
    wrong: Any = above.request(1)
    with pytest.raises(TypeError, match=r"a request of unit.above cannot be submitted as unit.add"):
        await add.submit_many([wrong])


async def test_a_client_is_used_until_the_end_of_its_block(recording: Recording) -> None:
    other = Recording(http_url="http://127.0.0.1:1")
    other.requests = []
    with use_client(other):
        await add.submit(1)
    await add.submit(2)
    assert [each.parameters for each in other.requests] == [{"a": 1}]
    assert [each.parameters for each in recording.requests] == [{"a": 2}]


count_words = command_action("submitted.count", argv=["wc", "-w"])
hook = http_action("submitted.hook", url="https://example.org/hook")


async def test_commands_and_urls_are_submitted_with_any_named_parameters(recording: Recording) -> None:
    await count_words.with_options(priority=2).submit(path="notes.txt", deep=True)
    await hook.submit()
    assert [(each.action_ref, each.parameters, each.priority) for each in recording.requests] == [
        ("submitted.count", {"path": "notes.txt", "deep": True}, 2),
        ("submitted.hook", {}, None),
    ]
    with pytest.raises(TypeError, match=r"submitted\.count has no function to call here: submit it"):
        count_words(path="notes.txt")
    with pytest.raises(TypeError):
        await count_words.submit("notes.txt")


async def test_an_async_client_cannot_block(recording: Recording) -> None:
    with pytest.raises(RuntimeError, match="give use_client a Client"):
        add.submit_sync(1)


def _context() -> Context:
    context = object.__new__(Context)
    context.attempt = 3  # type: ignore[assignment]
    return context
