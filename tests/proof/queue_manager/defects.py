"""Plants the bugs of `planted.txt` in the queue manager, and looks for each as the table says.

A bug is planted by replacing the code of one function, in place, while it is looked for.
"""

import inspect
import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from types import FunctionType
from typing import Any

import pytest

from tests.proof.planted import PlantedBug, changed, planted_bugs
from tests.proof.queue_manager import configurations
from tests.proof.queue_manager.explorer import explore
from tests.proof.queue_manager.recount import Violation
from tests.proof.queue_manager.references import (
    LINE_OPERATIONS,
    LIST_OPERATIONS,
    check_line,
    check_waiting_list,
    seeded,
)
from tests.proof.queue_manager.walks import walk
from tests.unit.queue_manager import test_gates, test_life, test_lines, test_pools, test_queues, test_runs
from turnstile.executor.leader import loading, writing
from turnstile.executor.queue_manager import (
    decide,
    decisions,
    gates,
    lines,
    pools,
    rates,
    runs,
    state,
    transitions,
    waiting,
)

DEFECTS = planted_bugs("queue_manager")
_MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        decide, decisions, gates, lines, loading, pools, rates, runs, state, transitions, waiting, writing,
        test_gates, test_life, test_lines, test_pools, test_queues, test_runs,
    )
}  # fmt: skip
_SECONDS_MAX = 8
"""For one unit test, which takes milliseconds where the turn ends."""


def is_quick(bug: PlantedBug) -> bool:
    """Whether one unit test or reference finds it, in milliseconds."""
    return bug.found_by.split()[0] not in {"explore", "walks"}


def _named(path: str) -> Any:
    module, *names = path.split(".")
    found: Any = _MODULES[module]
    for name in names:
        found = getattr(found, name)
    return found


def _function(path: str) -> FunctionType:
    found = _named(path)
    function = found.fget if isinstance(found, property) else inspect.unwrap(found)
    assert isinstance(function, FunctionType)
    return function


@contextmanager
def planted(bug: PlantedBug) -> Iterator[None]:
    """Let the queue manager have a bug."""
    (change,) = bug.changes
    function = _function(change.where)
    source = textwrap.dedent(inspect.getsource(function))
    source = changed(source[source.index("def ") :], bug.changes)
    names: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{source}", bug.name, "exec")
    exec(code, function.__globals__, names)
    right = function.__code__
    function.__code__ = names[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


def detection(bug: PlantedBug) -> BaseException | None:
    """Return what a planted bug led to; None: it was not detected."""
    with planted(bug):
        for way in bug.found_by.split("; "):
            previous = signal.signal(signal.SIGALRM, _never_ends)
            signal.alarm(_SECONDS_MAX if is_quick(bug) else 0)
            try:
                _look(*way.split())
            except Exception as error:  # noqa: BLE001
                return error
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, previous)
    return None


def _never_ends(*_: object) -> None:
    raise Violation("progress", "the turn does not end")


def _look(way: str, *words: str) -> None:
    """Look for a bug in one way; raises what shows it."""
    match way:
        case "explore":
            options = {name: int(value) for name, _, value in (w.partition("=") for w in words) if value}
            alive, states_max = options.get("alive", 3), options.get("states_max", 1500)
            for word in words:
                if "=" not in word:
                    report = explore(getattr(configurations, word)(alive), states_max=states_max)
                    if report.violation is not None:
                        raise report.violation
        case "walks":
            for seed in range(150):
                walk(seed)
        case "lists":
            for seed in range(20):
                check_waiting_list(seeded(seed, LIST_OPERATIONS))
        case "lines":
            for seed in range(40):
                check_line(seeded(seed, LINE_OPERATIONS), is_fair=seed % 2 == 0)
        case _:
            _run_test(_named(way))


def _run_test(test: FunctionType) -> None:
    """Run a unit test with each of its parameters."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in product(*(mark.args[1] for mark in marks)):
        arguments: dict[str, Any] = {}
        for (names, *_), value in zip((mark.args for mark in marks), values, strict=True):
            arguments |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        with pytest.MonkeyPatch.context() as patch:
            if "monkeypatch" in inspect.signature(test).parameters:
                arguments["monkeypatch"] = patch
            test(**arguments)
