"""What the definition of an action says about a request: its queue, its priority, its webhook. Pure.

In: a request that was checked at the door, and the definition as JSON. Out: the request with what the
definition adds, or a Refusal. Each key has the action's whole limit, so a submitter chooses keys freely only
where the action allows it.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec import structs

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.fields import PRIORITY_DEFAULT, pointer_path
from turnstile.executor.leader.ports import Request

_KEY_CHARS_MAX: Final = 512
_INDEX: Final = re.compile(r"-?[0-9]+")
_EXACT: Final = json.JSONDecoder(parse_int=Decimal, parse_float=Decimal)


def completed(request: Request, definition: Mapping[str, Any]) -> Request:
    """Return the request with its key, priority and webhook. Raises Refusal."""
    changes: dict[str, Any] = {}
    priority_min = definition.get("priority_min", 1)
    if request.priority is None:
        changes["priority"] = max(PRIORITY_DEFAULT, priority_min)
    elif request.priority < priority_min and not request.may_be_urgent and request.retry_of is None:
        raise _refusal(
            f"priority: {request.priority} is below the priority_min of the action, {priority_min}; send"
            f" {priority_min} or more, leave it out, or use a token with the role operate"
        )
    pointer = definition.get("concurrency_key")
    if not request.key and request.retry_of is None and (pointer or request.concurrency_key is not None):
        changes["key"] = _key(request, pointer, has_free_keys=definition.get("submitter_keys", False))
    if request.callback_url is None and (url := definition.get("callback_url")) is not None:
        changes["callback_url"] = url
    return structs.replace(request, **changes) if changes else request


def _key(request: Request, pointer: str | None, *, has_free_keys: bool) -> str:
    given = request.concurrency_key
    if given is not None and has_free_keys:
        return given
    if pointer is None:
        raise _refusal(
            "concurrency_key: the action has no keys; leave it out, or set submitter_keys in the action"
        )
    key = _text_at(request.parameters, pointer)
    if given is not None and key != given:
        raise _refusal(
            f"concurrency_key: is not the value at {pointer} in the parameters; leave it out, or set"
            " submitter_keys in the action"
        )
    if key is None:
        raise _refusal(f"parameters: no value at concurrency key {pointer}")
    if len(key) > _KEY_CHARS_MAX:
        raise _refusal(f"parameters: concurrency key longer than {_KEY_CHARS_MAX} characters")
    return key


def _refusal(message: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETERS, message)


def _text_at(parameters: bytes, pointer: str) -> str | None:
    """Return the value at a JSON Pointer as PostgreSQL's `#>>` does; None: there is none, or it is null."""
    found: Any = _EXACT.decode(parameters.decode())
    for step in pointer_path(pointer):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and _INDEX.fullmatch(step) and -len(found) <= int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    if found is None or isinstance(found, str):
        return found
    return _written(found)


def _written(value: Any) -> str:
    match value:
        case bool() | None:
            return json.dumps(value)
        case Decimal():
            return format(value or abs(value), "f")
        case dict():
            members = sorted(value.items(), key=lambda each: (len(each[0].encode()), each[0].encode()))
            return "{" + ", ".join(f"{_written(name)}: {_written(each)}" for name, each in members) + "}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
