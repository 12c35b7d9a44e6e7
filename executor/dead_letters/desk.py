"""List, show, send again, throw away: what an operator does with dead letters.

In: names of letters, a code, or all of them. Out: what was done, and why not for each that stays. A letter is
acknowledged only after the broker confirmed the message that it became (P5): whatever goes wrong between the
two, there is one more copy of a message, and a copy is recognised by its message id.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from common.broker.connection import BrokerUnavailable
from common.broker.delivery import Delivery, Publication
from common.broker.publisher import Publisher
from common.crash_points import CrashPoint, reached
from common.domain.errors import Unavailable
from executor.dead_letters.letter import Letter, read_letter, sent_again
from executor.dead_letters.look import Held, Keeps, all_held

logger = logging.getLogger(__name__)

LISTED_BODY_BYTES_MAX: Final = 1024
"""How much of its body a letter shows in a list."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""How much it shows alone."""
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 25.0
"""For all of it: HTTP answers within 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant; exactly one of these."""

    names: tuple[str, ...] = ()
    """Ids or fingerprints."""
    code: str | None = None
    all: bool = False

    def takes(self, letter: Letter) -> bool:
        """Tell whether the letter is meant."""
        return self.all or letter.code == self.code or any(letter.is_named(name) for name in self.names)

    def may_take(self, letter: Letter) -> bool:
        """Tell whether it may be meant, before it is known which of several keeps their message id."""
        return self.takes(letter) or letter.message_id in self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of the letters, the oldest first."""

    letters: list[Letter]
    rest: bool
    """There are more behind these."""
    total: int
    """Letters in the queue, of whatever code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What became of a selection."""

    done: int
    """Letters that left the queue, copies included."""
    refused: list[tuple[Letter, str]] = field(default_factory=list)
    """Letters that stay, and why."""
    missing: list[str] = field(default_factory=list)
    """Names that mean no letter."""
    left: int = 0
    """Letters that are meant and have to be asked for again, or that no look reaches yet."""


class DeadLetters:
    """The dead letters' queue. Safe to share between tasks and processes: one look at a time is let in."""

    def __init__(self, amqp_url: str, publisher: Publisher) -> None:
        self._amqp_url = amqp_url
        self._publisher = publisher

    async def page(self, *, code: str | None, after: str | None, limit: int) -> Page | None:
        """Return the letters behind the one with the fingerprint `after`; None where that one is gone.

        Raises Unavailable, like all that follow.
        """
        async with self._look(keeps=lambda _, __: False) as held:
            letters, total = held.letters, len(held.letters) + held.beyond
        if after is not None:
            places = [place for place, letter in enumerate(letters) if letter.fingerprint == after]
            if not places:
                return None
            letters = letters[places[-1] + 1 :]
        wanted = [letter for letter in letters if code in (None, letter.code)]
        return Page(letters=wanted[:limit], rest=len(wanted) > limit, total=total)

    async def read(self, name: str) -> Letter | None:
        """Return one letter with its body; None where there is none of that name."""
        asked = Selection(names=(name,))
        async with self._look(keeps=lambda _, letter: asked.may_take(letter)) as held:
            for letter in filter(asked.takes, held.letters):
                whole = read_letter(held.kept[letter.fingerprint][0], body_bytes_max=BODY_BYTES_MAX)
                return replace(whole, id=letter.id)
        return None

    async def replay(self, selection: Selection, *, limit: int) -> Dealt:
        """Send letters again under their first routing keys, the oldest first; those confirmed are gone.

        At most `limit`. Where the broker is lost meanwhile, some may have been sent and be here still.
        """
        async with self._look(keeps=_bounded(selection)) as held:
            meant, left = _meant(held, selection, limit)
            pairs = [(letter, delivery) for letter in meant for delivery in held.kept[letter.fingerprint]]
            refused: list[tuple[Letter, str]] = []
            confirmed: list[Delivery] = []
            outcomes = await self._publish(pairs)
            reached(CrashPoint.DEAD_LETTERS_SENT)
            for (letter, delivery), outcome in zip(pairs, outcomes, strict=True):
                if outcome is Publication.CONFIRMED:
                    confirmed.append(delivery)
                else:
                    refused.append((letter, _why(letter, outcome)))
            await held.acknowledge(confirmed)
            missing = _missing(held, selection)
        logger.info("dead_letters_replayed", extra={"letters": len(confirmed), "refused": len(refused)})
        return Dealt(done=len(confirmed), refused=refused, missing=missing, left=left)

    async def purge(self, selection: Selection, *, limit: int) -> Dealt:
        """Throw letters away, the oldest first, at most `limit`."""
        async with self._look(keeps=_without_body(selection)) as held:
            meant, left = _meant(held, selection, limit)
            gone = [delivery for letter in meant for delivery in held.kept[letter.fingerprint]]
            await held.acknowledge(gone)
            missing = _missing(held, selection)
        logger.warning("dead_letters_purged", extra={"letters": len(gone)})
        return Dealt(done=len(gone), missing=missing, left=left)

    async def _publish(self, pairs: Sequence[tuple[Letter, Delivery]]) -> list[Publication]:
        try:
            return await self._publisher.publish([sent_again(delivery, letter) for letter, delivery in pairs])
        except BrokerUnavailable as error:
            raise Unavailable(f"broker: {error}; look again before you repeat it") from error

    @asynccontextmanager
    async def _look(self, *, keeps: Keeps) -> AsyncIterator[Held]:
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                all_held(self._amqp_url, body_bytes_max=LISTED_BODY_BYTES_MAX, keeps=keeps) as held,
            ):
                yield held
        except TimeoutError:
            raise Unavailable(
                f"broker: the dead letters could not be looked at within {_TIMEOUT_SECONDS:g} s"
            ) from None


def _bounded(selection: Selection) -> Keeps:
    """Keep what may be meant, as long as the bodies fit into memory; the rest has to be asked for again."""
    kept_bytes = 0

    def keeps(delivery: Delivery, letter: Letter) -> bool:
        nonlocal kept_bytes
        if not selection.may_take(letter) or (
            kept_bytes and kept_bytes + letter.body_bytes > _KEPT_BYTES_MAX
        ):
            return False
        kept_bytes += letter.body_bytes
        return True

    return keeps


def _without_body(selection: Selection) -> Keeps:
    def keeps(delivery: Delivery, letter: Letter) -> bool:
        delivery.body = b""
        return selection.may_take(letter)

    return keeps


def _meant(held: Held, selection: Selection, limit: int) -> tuple[list[Letter], int]:
    """Return the letters that are meant and held, copies as one, and how many are left for another time."""
    all_meant = {letter.fingerprint: letter for letter in held.letters if selection.takes(letter)}
    meant = [letter for letter in all_meant.values() if letter.fingerprint in held.kept][:limit]
    return meant, len(all_meant) - len(meant) + (0 if selection.names else held.beyond)


def _missing(held: Held, selection: Selection) -> list[str]:
    return [name for name in selection.names if not any(letter.is_named(name) for letter in held.letters)]


def _why(letter: Letter, outcome: Publication) -> str:
    if outcome is Publication.RETURNED:
        return f"no queue takes {letter.original_routing_key!r}"
    return f"the queue that takes {letter.original_routing_key!r} is full or broken"
