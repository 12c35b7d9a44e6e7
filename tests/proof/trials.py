"""Runs trials one after the other and prints a line about each: the command of every proof.

In: names and trials; a trial returns what is wrong, and prints what else it has to say. Out: an exit code. 0:
all is well. 1: something is wrong, or a trial could not be run. 130: interrupted.
"""

import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn, TypeAlias

Trial: TypeAlias = Callable[[], Sequence[str]]
_INTERRUPTED: Final = 130


def run_trials(trials: Iterable[tuple[str, Trial]], *, words: Sequence[str] = (), stop: bool = False) -> int:
    """Run the trials whose name contains one of the words, or all; `stop` after the first that is wrong."""
    signal.signal(signal.SIGTERM, _interrupt)
    began, count, bad = time.monotonic(), 0, list[str]()
    try:
        for name, trial in trials:
            if words and not any(word in name for word in words):
                continue
            count += 1
            if _is_wrong(name, trial):
                bad.append(name)
                if stop:
                    break
    except KeyboardInterrupt:
        print("interrupted")
        return _INTERRUPTED
    seconds = time.monotonic() - began
    print(f"{count - len(bad)} of {count} in {seconds:.0f} s{': wrong are ' if bad else ''}{', '.join(bad)}")
    return int(bool(bad))


def _is_wrong(name: str, trial: Trial) -> bool:
    began = time.monotonic()
    try:
        wrong = trial()
    except Exception:  # noqa: BLE001  a trial that could not be run is a failure, and the others still run
        wrong = [traceback.format_exc()]
    _show(name, began, wrong)
    return bool(wrong)


def _show(name: str, began: float, wrong: Sequence[str]) -> None:
    """Print a trial that began at this instant of `time.monotonic`, and what is wrong."""
    print(f"{'WRONG' if wrong else 'ok':5} {time.monotonic() - began:6.1f} s  {name}", flush=True)
    for each in wrong:
        print(f"    {each}", flush=True)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
