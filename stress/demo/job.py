"""The job of the demo: a folder of text files, two requests for each file, and the expected results.

`prepare` writes the files and returns tasks in the order of submission, with results that are computed here
without any service. `submit` publishes `execution.requested` messages in that order, confirmed, as a client
does; the order of one publisher is the order of arrival.
"""

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionRequested

ACTIONS_MODULE: Final = "examples.actions"
COUNT_WORDS: Final = "files.count_words"
DIGEST: Final = "files.digest"

_FILES: Final = 100
_DIFFERENT_PARAGRAPHS: Final = 60
_PARAGRAPHS_MIN, _PARAGRAPHS_MAX = 40, 300
_PARAGRAPH_WORDS: Final = 150
_SEED: Final = 1
_SYLLABLES: Final = ("tur", "ni", "la", "sto", "que", "re", "mi", "gan", "do", "el", "pa", "ver")


class NotSubmitted(TurnstileError):
    """The broker did not confirm every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One requested execution; `number` is its position in the order of submission."""

    number: int
    action_ref: str
    path: Path
    expected: Mapping[str, JsonValue]
    """Fields that the result must contain."""

    def request(self) -> ExecutionRequested:
        """Return the body of its `execution.requested`."""
        return ExecutionRequested(
            action_ref=self.action_ref,
            parameters={"path": str(self.path)},
            metadata={"number": self.number},
        )


def prepare(folder: Path) -> list[Task]:
    """Write the files into `folder`; return two tasks for each: first its word count, then its digest."""
    folder.mkdir(parents=True)
    source = random.Random(_SEED)
    paragraphs = [_paragraph(source) for _ in range(_DIFFERENT_PARAGRAPHS)]
    tasks: list[Task] = []
    for file_number in range(_FILES):
        path = folder / f"{file_number:03}.txt"
        text = "\n".join(source.choices(paragraphs, k=source.randint(_PARAGRAPHS_MIN, _PARAGRAPHS_MAX)))
        path.write_text(text, encoding="utf-8")
        count, sha256 = len(text.split()), hashlib.sha256(text.encode()).hexdigest()
        for action_ref, field, value in ((COUNT_WORDS, "words", count), (DIGEST, "sha256", sha256)):
            tasks.append(Task(number=len(tasks), action_ref=action_ref, path=path, expected={field: value}))
    return tasks


async def submit(amqp_url: str, tasks: Sequence[Task]) -> None:
    """Publish the requests of all tasks; return when the broker has confirmed each. Raises NotSubmitted."""
    publisher = Publisher(amqp_url, name="demo publisher")
    messages = [
        envelope(
            task.request(),
            message_type=EXECUTION_REQUESTED,
            exchange=EXECUTIONS,
            routing_key=EXECUTION_REQUESTED,
            app_id="client",
        )
        for task in tasks
    ]
    outcomes: Sequence[Publication] = ()
    reason = "not confirmed"
    async with asyncio.TaskGroup() as group:
        connection = group.create_task(publisher.run(), name="demo publisher")
        try:
            outcomes = await publisher.publish(messages)
        except BrokerUnavailable as error:
            reason = str(error)
        connection.cancel()
    confirmed = outcomes.count(Publication.CONFIRMED)
    if confirmed < len(tasks):
        raise NotSubmitted(f"the broker confirmed {confirmed} of {len(tasks)} requests: {reason}")


def _paragraph(source: random.Random) -> str:
    words = ("".join(source.choices(_SYLLABLES, k=source.randint(1, 4))) for _ in range(_PARAGRAPH_WORDS))
    return " ".join(words).capitalize() + "."
