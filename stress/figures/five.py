"""The five figures of a run.

In: its stages, each with its verdict and its figures. Out: `FiveFigures`. A figure comes from the stages
whose purpose it is; where there are several of them, from the one in which most ended.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from turnstile.stress.check.verdict import Rule, Verdict
from turnstile.stress.figures.values import FiveFigures, Point, StageFigures
from turnstile.stress.recording import Recording
from turnstile.stress.stage import Purpose, Stage

Judged: TypeAlias = tuple[Recording, Verdict, StageFigures]

ORDER_RULES: Final = frozenset({Rule.GRANTED_IN_ORDER, Rule.ADMITTED_IN_ORDER, Rule.STARTED_IN_ORDER})
LIMIT_RULES: Final = frozenset({Rule.LIMIT_HELD, Rule.LIMIT_RUN})


def five_figures(stages: Sequence[Judged]) -> FiveFigures:
    """Return what a run comes to."""
    limited = _best(stages, Purpose.THROUGHPUT, lambda stage: stage.limit is not None)
    unlimited = _best(stages, Purpose.THROUGHPUT, lambda stage: stage.limit is None)
    alone = _best(stages, Purpose.HAND_OVER, lambda _: True)
    return FiveFigures(
        limit=None if limited is None else limited[0].stage.limit,
        per_second_limited=None if limited is None else limited[2].executions_per_second,
        per_second_unlimited=None if unlimited is None else unlimited[2].executions_per_second,
        hand_over=None if alone is None else alone[2].hand_over,
        by_depth=_points(stages, Purpose.DEPTH, lambda stage: stage.load.executions),
        by_keys=_points(stages, Purpose.KEYS, lambda stage: max(stage.load.keys, 1)),
        recoveries=tuple(recovery for *_, figures in stages for recovery in figures.recoveries),
        order_violations=_broken(stages, ORDER_RULES),
        limit_violations=_broken(stages, LIMIT_RULES),
        other_violations=_broken(stages, frozenset(Rule) - ORDER_RULES - LIMIT_RULES),
    )


def _best(stages: Sequence[Judged], purpose: Purpose, fits: Callable[[Stage], bool]) -> Judged | None:
    fitting = [one for one in stages if one[0].stage.purpose is purpose and fits(one[0].stage)]
    return max(fitting, key=lambda one: one[2].ended, default=None)


def _points(stages: Sequence[Judged], purpose: Purpose, at: Callable[[Stage], int]) -> tuple[Point, ...]:
    points = [
        Point(
            at=at(recording.stage),
            executions_per_second=figures.executions_per_second,
            hand_over=figures.hand_over,
        )
        for recording, _, figures in stages
        if recording.stage.purpose is purpose
    ]
    return tuple(sorted(points, key=lambda point: point.at))


def _broken(stages: Sequence[Judged], rules: frozenset[Rule]) -> int:
    return sum(
        finding.broken for _, verdict, _ in stages for finding in verdict.findings if finding.rule in rules
    )
