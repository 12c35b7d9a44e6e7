"""The common time axis of the pictures of a scenario: seconds from its beginning, with its faults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turnstile.stress.metrics.scenario import measured_until
from turnstile.stress.recording import NEVER, SECOND, Recording
from turnstile.stress.report.charts.style import GREEN, INK, MUTED, RED, WIDTH_INCHES, new_figure
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import FaultKind

_ROW_INCHES: Final = 0.24
_LETTER_INCHES: Final = 0.072
_MARGIN_INCHES: Final = 0.95
"""The height of title, legend, axis labels and margins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPeriod:
    """A fault on the time axis of its scenario, in seconds."""

    kind: FaultKind
    target: str
    began: float
    healed: float
    recovered: float | None
    """When the system had recovered; None: not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The time axis of a scenario, with its faults."""

    began_at: int
    ended_at: int
    opened: float | None
    """When paused actions were resumed."""
    lifted: float | None
    """When the limit was lifted to drain the scenario."""
    faults: tuple[FaultPeriod, ...]

    @classmethod
    def of(cls, report: ScenarioReport) -> Self:
        """Place a scenario's faults on its time axis."""
        recording = report.recording
        faults = []
        for fault in recording.faults:
            began = (fault.began_at - recording.began_at) / SECOND
            recovery = report.recovery_of(fault)
            after = None if recovery is None else recovery.recovered_seconds
            faults.append(
                FaultPeriod(
                    kind=fault.kind,
                    target=fault.target,
                    began=began,
                    healed=(fault.healed_at - recording.began_at) / SECOND,
                    recovered=None if after is None else began + after,
                )
            )
        opened, until = recording.opened_at, measured_until(recording)
        return cls(
            began_at=recording.began_at,
            ended_at=_last_at(recording),
            opened=None if opened == NEVER else (opened - recording.began_at) / SECOND,
            lifted=None if until == recording.ended_at else (until - recording.began_at) / SECOND,
            faults=tuple(faults),
        )

    @property
    def seconds(self) -> float:
        """The length of the scenario."""
        return (self.ended_at - self.began_at) / SECOND

    def at(self, seconds: float) -> int:
        """Return the instant at these seconds."""
        return self.began_at + int(seconds * SECOND)

    @property
    def kinds(self) -> tuple[FaultKind, ...]:
        """The kinds of faults in the order of their first occurrence."""
        return tuple(dict.fromkeys(fault.kind for fault in self.faults))


def panels(
    title: str,
    timeline: Timeline,
    heights_inches: Sequence[float],
    margin_inches: float = _MARGIN_INCHES,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels on one time axis, below a strip with one row per kind of fault."""
    strip = _ROW_INCHES * len(timeline.kinds)
    heights = ([strip] if strip else []) + list(heights_inches)
    figure = new_figure(title, sum(heights) + margin_inches)
    every: list[Axes] = list(
        figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    )
    below = every[1:] if strip else every
    if strip:
        _draw_strip(every[0], timeline)
    _label_events(below[0], timeline)
    for axes in below:
        _shade(axes, timeline)
    every[-1].set_xlabel("seconds from the first request")
    every[-1].set_xlim(0, timeline.seconds)
    return figure, below


def _draw_strip(axes: Axes, timeline: Timeline) -> None:
    kinds = timeline.kinds
    letter = timeline.seconds * _LETTER_INCHES / (WIDTH_INCHES - 1.5)
    for row, kind in enumerate(kinds):
        faults = [fault for fault in timeline.faults if fault.kind is kind]
        ends = [max(fault.healed, fault.recovered or 0.0) for fault in faults]
        for fault, end, beyond in zip(
            faults, ends, [each.began for each in faults[1:]] + [None], strict=True
        ):
            axes.barh(row, max(end - fault.began, 0), left=fault.began, height=0.34, color=GREEN, alpha=0.35)
            shown = max(fault.healed - fault.began, timeline.seconds / 400)
            axes.barh(row, shown, left=fault.began, height=0.7, color=RED)
            if fault.recovered is not None:
                axes.plot(fault.recovered, row, marker="|", color=GREEN, markersize=9, markeredgewidth=2)
            if end + letter * (len(fault.target) + 1.5) < (timeline.seconds if beyond is None else beyond):
                axes.text(end + letter, row, fault.target, va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(kinds)), [kind.value for kind in kinds])
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(bottom=False, labelbottom=False, left=False)
    axes.spines[["bottom", "left"]].set_visible(False)


def _shade(axes: Axes, timeline: Timeline) -> None:
    for fault in timeline.faults:
        axes.axvspan(fault.began, fault.healed, color=RED, alpha=0.13, linewidth=0)
        axes.axvline(fault.began, color=RED, linewidth=0.8)
        if fault.recovered is not None:
            axes.axvline(fault.recovered, color=GREEN, linewidth=0.8)
    for second in (timeline.opened, timeline.lifted):
        if second is not None:
            axes.axvline(second, color=MUTED, linewidth=1, linestyle=":")


def _label_events(axes: Axes, timeline: Timeline) -> None:
    """Label the events of the scenario above the top panel."""
    for second, name in ((timeline.opened, "resumed"), (timeline.lifted, "limit lifted")):
        if second is None:
            continue
        axes.annotate(
            name,
            (second, 1.0),
            xycoords=("data", "axes fraction"),
            ha="left" if second < timeline.seconds / 2 else "right",
            va="bottom",
            color=MUTED,
            fontsize=8,
        )


def _last_at(recording: Recording) -> int:
    """Return the end of the time axis: shortly after the last end, or the end of the scenario."""
    ends = np.concatenate((recording.executions["completed_at"], recording.attempts["ended_at"]))
    last = int(ends.max(initial=recording.began_at))
    if last == NEVER:
        return recording.ended_at
    last = max(last, *(fault.healed_at for fault in recording.faults), recording.began_at)
    ended_at = min(recording.ended_at, last + (last - recording.began_at) // 50)
    return max(ended_at, recording.began_at + SECOND // 100)
