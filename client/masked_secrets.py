"""Finds secrets that JSON would replace by a mask: pydantic's `SecretStr`, `SecretBytes` and `Secret`.

In: a value, and what was written for it as JSON. Out: a sentence about the first secret of which only a mask
was written. A secret that a serializer of the user's model has unwrapped is not reported.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import to_jsonable_python

_SECRETS: Final = (Secret, SecretBytes, SecretStr)
_LOST: Final = (
    "a secret of pydantic is written as a mask, so its value would be lost; send a reference to the secret, "
    "such as its name in your vault, or annotate str and pass secret.get_secret_value()"
)
_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)

Path = tuple[object, ...]


def masked_secret(
    value: object, written: object, *, path: Path = (), adapter: TypeAdapter[Any] = _ANY
) -> str | None:
    """Return what is wrong with a secret in `value`, of which `written`, its JSON by `adapter`, has a mask.

    `path` is that of the value itself. None if there is no such secret.
    """
    if isinstance(value, str | int | float | None):
        return None
    plain = adapter.dump_python(value, mode="python", by_alias=True, round_trip=True, warnings="none")
    found = _masked(plain, written, path)
    return None if found is None else f"{'.'.join(map(str, found))}: {_LOST}"


def _masked(plain: object, written: object, path: Path) -> Path | None:
    """Return the path of the first mask in `written`."""
    if isinstance(plain, _SECRETS):
        is_masked = written == to_jsonable_python(plain) and written != plain.get_secret_value()
        return path if is_masked else None
    pairs: Iterable[tuple[object, tuple[object, object]]] = ()
    # Where a serializer of the user made something else of a value, nothing is compared.
    if isinstance(plain, Mapping) and isinstance(written, dict):
        pairs = zip(written, zip(plain.values(), written.values(), strict=False), strict=False)
    elif isinstance(plain, list | tuple | set | frozenset) and isinstance(written, list):
        pairs = enumerate(zip(plain, written, strict=False))
    return next((found for name, pair in pairs if (found := _masked(*pair, (*path, name)))), None)
