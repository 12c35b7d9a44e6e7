"""Actions that do nothing, under the limits that the parts need."""

from typing import Final

from turnstile.worker import action

LIMITED: Final = tuple(f"bench.limited.{number}" for number in range(10))
UNLIMITED: Final = tuple(f"bench.unlimited.{number}" for number in range(10))
LOOSE: Final = tuple(f"bench.loose.{number}" for number in range(10))
"""Under a limit that is never reached."""
ONE_AT_A_TIME: Final = "bench.one"
AT_ONCE: Final = "bench.at_once"


def _declare(ref: str, max_concurrent: int | None) -> None:
    async def nothing(number: int = 0) -> int:
        return number

    action(ref, max_concurrent=max_concurrent)(nothing)


for _ref in LIMITED:
    _declare(_ref, 4)
for _ref in LOOSE:
    _declare(_ref, 10_000)
for _ref in (*UNLIMITED, AT_ONCE):
    _declare(_ref, None)
_declare(ONE_AT_A_TIME, 1)
