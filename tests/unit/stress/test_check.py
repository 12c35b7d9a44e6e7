"""The judge judged: a lawful history passes, and each way to break one is found and named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stress.cases import CASES
from tests.unit.stress.histories import MILLISECOND, NewLimit, Plan, lawful
from turnstile.stress.check.judge import judge
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import SECOND

new_limits = st.lists(
    st.builds(
        NewLimit,
        action=st.integers(0, 2),
        limit=st.one_of(st.none(), st.integers(1, 5)),
        at=st.integers(1, 900).map(lambda ms: ms * MILLISECOND),
    ),
    max_size=4,
    unique_by=lambda change: change.at,
)
plans = st.builds(
    Plan,
    executions=st.integers(1, 250),
    keys=st.sampled_from([0, 4]),
    limit=st.one_of(st.none(), st.integers(1, 5)),
    submitters=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    spacing_ns=st.sampled_from([0, MILLISECOND, 5 * MILLISECOND]),
    killed_at=st.one_of(st.none(), st.integers(1, 600).map(lambda ms: ms * MILLISECOND)),
    new_limits=new_limits.map(lambda changes: tuple(sorted(changes, key=lambda change: change.at))),
    opened_at=st.one_of(st.none(), st.just(5 * SECOND)),
)


def broken(recording: Recording) -> dict[Rule, tuple[str, ...]]:
    return {finding.rule: finding.examples for finding in judge(recording).broken}


@given(plan=plans)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_lawful_history_breaks_no_rule(plan: Plan) -> None:
    assert broken(lawful(plan)) == {}


def test_there_is_one_finding_for_each_rule_in_their_order() -> None:
    findings = judge(lawful(Plan(limit=1, killed_at=200 * MILLISECOND))).findings
    assert [finding.rule for finding in findings] == list(Rule)
    assert all(finding.looked_at for finding in findings)


def test_a_stage_of_which_nothing_was_recorded_is_judged_too() -> None:
    recording = lawful(Plan(executions=1))
    nothing = {name: getattr(recording, name)[:0] for name in ("orders", "executions", "attempts", "runs")}
    assert broken(replace(recording, **nothing, counters=(), audit=None)) == {}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_by_its_rule_and_no_other(name: str) -> None:
    case = CASES[name]
    found = broken(case.doctor(lawful(case.plan)))
    assert found.keys() == case.rules, found
    assert any(case.words in example for examples in found.values() for example in examples), found


def test_every_rule_is_broken_by_some_history() -> None:
    assert {rule for case in CASES.values() for rule in case.rules} == set(Rule)
