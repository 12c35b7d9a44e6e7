"""The little job: a folder of text files, two requests for each, and the right answers.

In: an empty folder. Out: `Task` values in the order of submission: their requests, and what their results
must say, counted here without any of the services. Next: `submission` sends them, `report` compares.
"""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One execution that the demonstration asks for; `number` is its place in the order of submission."""

    number: int
    action_ref: str
    path: Path
    answer: Mapping[str, JsonValue]
    """What the result must hold, at least."""

    def request(self) -> ExecutionRequested:
        """Return the body of its `execution.requested`."""
        return ExecutionRequested(
            action_ref=self.action_ref,
            parameters={"path": str(self.path)},
            metadata={"number": self.number},
        )


def prepare(folder: Path) -> list[Task]:
    """Write the files into `folder` and return the tasks: for each file first its count, then its digest."""
    folder.mkdir(parents=True)
    source = random.Random(_SEED)
    paragraphs = [_paragraph(source) for _ in range(_DIFFERENT_PARAGRAPHS)]
    tasks: list[Task] = []
    for file_number in range(_FILES):
        path = folder / f"{file_number:03}.txt"
        text = "\n".join(source.choices(paragraphs, k=source.randint(_PARAGRAPHS_MIN, _PARAGRAPHS_MAX)))
        path.write_text(text, encoding="utf-8")
        tasks.append(
            Task(number=len(tasks), action_ref=COUNT_WORDS, path=path, answer={"words": len(text.split())})
        )
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        tasks.append(Task(number=len(tasks), action_ref=DIGEST, path=path, answer={"sha256": sha256}))
    return tasks


def _paragraph(source: random.Random) -> str:
    words = ("".join(source.choices(_SYLLABLES, k=source.randint(1, 4))) for _ in range(_PARAGRAPH_WORDS))
    return " ".join(words).capitalize() + "."
