"""The metrics of a whole run, from those of its scenarios."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from turnstile.stress.check.verdict import Rule, Verdict
from turnstile.stress.metrics.values import Point, RunMetrics, ScenarioMetrics
from turnstile.stress.recording import Recording
from turnstile.stress.scenario import Purpose, Scenario

CheckedScenario: TypeAlias = tuple[Recording, Verdict, ScenarioMetrics]

ORDER_RULES: Final = frozenset(
    {
        Rule.GRANTED_IN_ORDER,
        Rule.ADMITTED_IN_ORDER,
        Rule.STARTED_IN_ORDER,
        Rule.PASSED_IN_ORDER,
        Rule.SHARED_FAIRLY,
    }
)
LIMIT_RULES: Final = frozenset({Rule.LIMIT_HELD, Rule.LIMIT_RUN, Rule.UNITS_HELD, Rule.RATE_KEPT})


def run_metrics(scenarios: Sequence[CheckedScenario]) -> RunMetrics:
    """Combine the metrics of all scenarios.

    Each value comes from the scenario with its purpose; of several, from the one with the most executions.
    """
    limited = _best(scenarios, Purpose.THROUGHPUT, lambda scenario: scenario.limit is not None)
    unlimited = _best(scenarios, Purpose.THROUGHPUT, lambda scenario: scenario.limit is None)
    alone = _best(scenarios, Purpose.HAND_OVER, lambda _: True)
    return RunMetrics(
        limit=None if limited is None else limited[0].scenario.limit,
        per_second_limited=None if limited is None else limited[2].executions_per_second,
        per_second_unlimited=None if unlimited is None else unlimited[2].executions_per_second,
        hand_over=None if alone is None else alone[2].hand_over,
        by_depth=_points(scenarios, Purpose.DEPTH, lambda scenario: scenario.load.executions),
        by_keys=_points(scenarios, Purpose.KEYS, lambda scenario: max(scenario.load.keys, 1)),
        recoveries=tuple(recovery for *_, metrics in scenarios for recovery in metrics.recoveries),
        order_violations=_broken(scenarios, ORDER_RULES),
        limit_violations=_broken(scenarios, LIMIT_RULES),
        other_violations=_broken(scenarios, frozenset(Rule) - ORDER_RULES - LIMIT_RULES),
    )


def _best(
    scenarios: Sequence[CheckedScenario], purpose: Purpose, fits: Callable[[Scenario], bool]
) -> CheckedScenario | None:
    fitting = [one for one in scenarios if one[0].scenario.purpose is purpose and fits(one[0].scenario)]
    return max(fitting, key=lambda one: one[2].ended, default=None)


def _points(
    scenarios: Sequence[CheckedScenario], purpose: Purpose, at: Callable[[Scenario], int]
) -> tuple[Point, ...]:
    points = [
        Point(
            at=at(recording.scenario),
            executions_per_second=metrics.executions_per_second,
            hand_over=metrics.hand_over,
        )
        for recording, _, metrics in scenarios
        if recording.scenario.purpose is purpose
    ]
    return tuple(sorted(points, key=lambda point: point.at))


def _broken(scenarios: Sequence[CheckedScenario], rules: frozenset[Rule]) -> int:
    return sum(
        finding.broken for _, verdict, _ in scenarios for finding in verdict.findings if finding.rule in rules
    )
