"""Says what became of a change that was not answered in time: nothing, it is kept, or it is unknown.

In: the errors of the inbox and the database. Out: `Unavailable` with a sentence for the client, who decides
whether to repeat the request.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.executor.inbox import ANSWER_SECONDS, NotDecidedYet

_UNKNOWN: Final = "all or part of it may be done: check, or repeat it with the same idempotency key"
_STORING_SECONDS: Final = 5.0
"""Beyond the deadline of the inbox, so that its error, which knows more, comes first."""
_NAMED_MAX: Final = 3


@asynccontextmanager
async def answer_deadline(*, adds_executions: bool = False) -> AsyncIterator[None]:
    """Bound a change; raises Unavailable, which says whether the change may be done, and how to repeat it.

    `adds_executions`: a repetition without an idempotency key would be a second execution.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS + _STORING_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable(f"no answer in time; {_UNKNOWN}") from None
    except NotDecidedYet as error:
        remedy = "repeat the request to see its result"
        if adds_executions:
            remedy = (
                f"{_read(error.command_ids)} to see its result, or repeat it with the same idempotency key"
            )
        raise Unavailable(
            f"kept, not decided yet: no leader answered within {ANSWER_SECONDS:g} s, and the next one "
            f"decides it; {remedy}"
        ) from error
    except Overloaded as error:
        raise Overloaded(f"{error}; nothing was done, repeat it later") from error
    except Unavailable as error:
        raise Unavailable(f"{error}; {_UNKNOWN}") from error


def _read(command_ids: Sequence[UUID]) -> str:
    more = len(command_ids) - _NAMED_MAX
    paths = ", ".join(f"/api/v1/submissions/{each}" for each in command_ids[:_NAMED_MAX])
    return f"GET {paths}" + (f" and {more} more" if more > 0 else "")
