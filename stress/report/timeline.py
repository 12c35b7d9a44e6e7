"""Draws the runs of one queue over time as SVG: who held each slot, what a fault cut off, when it ran again.

In: a recording. Out: text of an SVG, or None where no run has a known instant. Each row is a slot, each bar a
run; bars of one colour are of one worker process. What a fault ended is hatched, and pale until its slot was
free again.
"""

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.recording import NEVER, SECOND, Outcome, Recording, RunEnd

_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c564b", "#6a737d")
"""Those of Okabe and Ito, which people with any colour vision can distinguish; red is for faults."""
_RED: Final = "#d55e00"
_WIDTH, _ROW, _LEFT, _TOP = 960, 18, 40, 34
_BEFORE_SECONDS: Final = 2.0
_SHOWN_SECONDS: Final = 40.0
_BARS_MAX: Final = 2_000
_SLOTS_MAX: Final = 18
_HATCH: Final = (
    '<pattern id="lost" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="6" height="6" fill="#f6c9ae"/><rect width="2" height="6" fill="{_RED}"/></pattern>'
)


class Bar(NamedTuple):
    """One run; instants in seconds from the beginning of the picture."""

    slot: int
    process: int
    execution_id: int
    began: float
    ended: float
    free_at: float
    """When another one could have the slot."""
    is_lost: bool


def timeline(recording: Recording) -> str | None:
    """Return the picture of the queue with most runs around the first fault, or from the first start on."""
    runs = recording.runs[recording.runs["started_at"] != NEVER]
    if not len(runs):
        return None
    faults = [each.began_at for each in recording.faults]
    began_at = faults[0] - int(_BEFORE_SECONDS * SECOND) if faults else int(runs["started_at"].min())
    bars = _bars(recording, began_at)
    if not bars:
        return None
    marks = [(at - began_at) / SECOND for at in faults]
    return "\n".join(_svg(recording.scenario.title, bars, [at for at in marks if at < _SHOWN_SECONDS]))


def _bars(recording: Recording, began_at: int) -> list[Bar]:
    until = began_at + int(_SHOWN_SECONDS * SECOND)
    runs = recording.runs
    reclaims = recording.attempts[recording.attempts["outcome"] == Outcome.RECLAIMED]
    reclaimed_at = values_at(
        column(reclaims, "ended_at"), rows_of(attempt_keys(reclaims), attempt_keys(runs)), 0
    )
    stopped_at = column(runs, "stopped_at")
    # Of a run whose end was not recorded its reclaim is known, or nothing.
    unknown = stopped_at == NEVER
    stopped_at[unknown] = np.where(reclaimed_at > 0, reclaimed_at, until)[unknown]
    free_at = np.maximum(stopped_at, reclaimed_at)
    is_lost = (reclaimed_at > 0) | (runs["end"] == RunEnd.KILLED)
    started_at = runs["started_at"]
    near = (started_at < until) & (free_at > began_at) & (runs["queue"] >= 0)
    affected = near & is_lost if (near & is_lost).any() else near
    if not affected.any():
        return []
    queues, counts = np.unique(runs["queue"][affected], return_counts=True)
    rows = np.flatnonzero(near & (runs["queue"] == queues[counts.argmax()]))
    free_from: list[int] = []
    bars = []
    for row in rows[np.argsort(started_at[rows], kind="stable")][:_BARS_MAX].tolist():
        started, free = int(started_at[row]), int(free_at[row])
        slot = next((slot for slot, at in enumerate(free_from) if at <= started), len(free_from))
        free_from[slot : slot + 1] = [free]
        if slot < _SLOTS_MAX:
            began, ended, freed = ((at - began_at) / SECOND for at in (started, int(stopped_at[row]), free))
            process, execution_id = int(runs["process"][row]), int(runs["execution_id"][row])
            bars.append(Bar(slot, process, execution_id, began, ended, freed, bool(is_lost[row])))
    return bars


def _svg(title: str, bars: list[Bar], faults: list[float]) -> Iterator[str]:
    seconds = min(max(bar.free_at for bar in bars), _SHOWN_SECONDS)
    scale = (_WIDTH - _LEFT - 10) / seconds
    height = _TOP + _ROW * (max(bar.slot for bar in bars) + 1) + 30
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">'
    yield f'<defs>{_HATCH}</defs><rect width="100%" height="100%" fill="#fff"/>'
    yield f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>'
    processes = {process: number for number, process in enumerate(sorted({bar.process for bar in bars}))}
    for bar in bars:
        y, colour = _TOP + bar.slot * _ROW, _COLOURS[processes[bar.process] % len(_COLOURS)]
        if bar.is_lost:
            yield _rectangle((bar.ended, bar.free_at), y, scale, "#fae8dd")
        label = f"execution {bar.execution_id}, worker process {processes[bar.process] + 1}"
        yield _rectangle((bar.began, bar.ended), y, scale, "url(#lost)" if bar.is_lost else colour, label)
    for at in faults:
        x = _LEFT + at * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 24}" stroke="{_RED}"/>'
    for second in range(0, int(seconds) + 1, max(int(seconds / 10), 1)):
        x = _LEFT + second * scale
        yield f'<text x="{x:.1f}" y="{height - 8}" font-size="11" text-anchor="middle">{second} s</text>'
    yield "</svg>\n"


def _rectangle(
    span: tuple[float, float], y: float, scale: float, fill: str, label: str = "slot still held"
) -> str:
    began, ended = max(span[0], 0.0), min(span[1], _SHOWN_SECONDS)
    x, width = _LEFT + began * scale, max((ended - began) * scale, 0.5)
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 3}" fill="{fill}" stroke="#fff"'
        f' stroke-width="0.4"><title>{escape(label)}</title></rect>'
    )
