"""Makes a failing story shorter: leaves out faults, commands, requests and processes while it still fails."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.proof.simulation.interference import world_of
from tests.proof.simulation.judge import violations
from tests.proof.simulation.story import Story

T = TypeVar("T")


def rules_of(sentences: Sequence[str]) -> frozenset[str]:
    """Return which rules these sentences are about."""
    return frozenset(sentence.split(" ", 1)[0] for sentence in sentences)


def judged(story: Story) -> list[str]:
    """Run a story and return what it breaks."""
    return violations(world_of(story).run())


def shortest(story: Story, broken: Sequence[str], *, seconds: float) -> tuple[Story, list[str]]:
    """Return the shortest story that was found within the time and breaks one of the same rules, and how."""
    deadline = time.monotonic() + seconds
    wanted, found = rules_of(broken), list(broken)

    def still_fails(candidate: Story) -> bool:
        nonlocal found
        if time.monotonic() > deadline:
            return False
        sentences = judged(candidate)
        if rules_of(sentences) & wanted:
            found = sentences
            return True
        return False

    while time.monotonic() < deadline:
        before = story
        for name in ("faults", "commands", "requests"):
            story = _fewer(story, name, still_fails)
        for candidate in _smaller(story):
            if still_fails(candidate):
                story = candidate
        if story == before:
            break
    return story, found


def _fewer(story: Story, name: str, still_fails: Callable[[Story], bool]) -> Story:
    """Leave out parts of one list: halves first, then ever smaller parts."""
    parts: list[Any] = list(getattr(story, name))
    size = max(len(parts), 1)
    while parts and size:
        first = 0
        while first < len(parts):
            fewer = [*parts[:first], *parts[first + size :]]
            changed: dict[str, Any] = {name: tuple(fewer)}
            candidate: Story = replace(story, **changed)
            if still_fails(candidate):
                parts, story = fewer, candidate
            else:
                first += size
        size //= 2
    return story


def _smaller(story: Story) -> Iterator[Story]:
    """Yield the story with fewer processes, plainer requests, or fewer fields of actions."""
    if story.executors > 1:
        yield replace(story, executors=story.executors - 1)
    if len(story.workers) > 1:
        yield replace(story, workers=story.workers[:-1])
    for number, action in enumerate(story.actions):
        if len(action.fields) > 1:
            plain = replace(action, fields={"max_reclaims": 100})
            yield replace(story, actions=(*story.actions[:number], plain, *story.actions[number + 1 :]))
    for number, fault in enumerate(story.faults):
        if fault.calls > 0:
            earlier = replace(fault, calls=fault.calls // 2)
            yield replace(story, faults=(*story.faults[:number], earlier, *story.faults[number + 1 :]))
