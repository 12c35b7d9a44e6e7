"""The decision of a worker that may have lost its lease, for all leases, instants and outages."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from turnstile.worker.fence import Evidence, Standing, Terms

_seconds = st.floats(min_value=0.0, max_value=1000.0, allow_nan=False)
_lease_seconds = st.floats(min_value=0.5, max_value=3600.0, allow_nan=False)


@st.composite
def _terms(draw: st.DrawFn) -> Terms:
    lease_seconds = draw(_lease_seconds)
    share = draw(st.floats(min_value=0.05, max_value=0.5))
    return Terms(lease_seconds=lease_seconds, heartbeat_seconds=lease_seconds * share)


_evidence = st.builds(
    Evidence, renewed_at=st.one_of(st.none(), _seconds), reached_at=st.one_of(st.none(), _seconds)
)
DEFAULTS = Terms(lease_seconds=15.0, heartbeat_seconds=5.0)


def _standing(terms: Terms, renewed_at: float | None, reached_at: float | None, now: float) -> Standing:
    return terms.standing(Evidence(renewed_at=renewed_at, reached_at=reached_at), now=now)


def test_the_margin_is_a_second_or_a_fifth_and_at_most_a_third() -> None:
    margins = {
        lease: Terms(lease_seconds=lease, heartbeat_seconds=lease / 3).margin_seconds
        for lease in (1.5, 3.0, 5.0, 15.0, 60.0)
    }
    assert margins == {1.5: 0.5, 3.0: 1.0, 5.0: 1.0, 15.0: 3.0, 60.0: 12.0}


def test_the_standing_after_one_renewal_with_the_defaults() -> None:
    assert [_standing(DEFAULTS, 100.0, None, now) for now in (100.0, 111.9, 112.0, 200.0)] == [
        Standing.CERTAIN,
        Standing.CERTAIN,
        Standing.OVER,
        Standing.OVER,
    ]


def test_work_goes_on_in_doubt_as_long_as_probes_of_the_broker_succeed() -> None:
    for now in (112.0, 150.0, 10_000.0):
        assert _standing(DEFAULTS, 100.0, now - 2.9, now) is Standing.IN_DOUBT
        assert _standing(DEFAULTS, 100.0, now - 3.1, now) is Standing.OVER


def test_before_the_first_renewal_nothing_may_start_and_nothing_need_be_killed() -> None:
    assert _standing(DEFAULTS, None, None, 1e9) is Standing.IN_DOUBT
    assert DEFAULTS.probes_broker_from(Evidence()) == math.inf


@given(terms=_terms(), evidence=_evidence, now=_seconds)
def test_nothing_starts_that_could_outlive_its_lease(terms: Terms, evidence: Evidence, now: float) -> None:
    if terms.standing(evidence, now=now) is Standing.CERTAIN:
        assert evidence.renewed_at is not None
        assert now + terms.margin_seconds <= evidence.renewed_at + terms.lease_seconds + 1e-6


@given(terms=_terms(), evidence=_evidence, now=_seconds)
def test_cut_off_from_both_a_process_is_ended_before_its_lease_is(
    terms: Terms, evidence: Evidence, now: float
) -> None:
    assume(evidence.renewed_at is not None)
    assert evidence.renewed_at is not None
    silent = Evidence(renewed_at=evidence.renewed_at)
    lease_ends_at = evidence.renewed_at + terms.lease_seconds
    killed_at = terms.may_run_until(silent)
    assert killed_at + terms.enforce_seconds < terms.killed_from_outside_at(silent) < lease_ends_at
    assert (terms.standing(silent, now=now) is Standing.OVER) == (now >= killed_at)


@given(terms=_terms(), evidence=_evidence, now=_seconds)
def test_no_work_goes_on_in_doubt_without_a_recent_probe(
    terms: Terms, evidence: Evidence, now: float
) -> None:
    if evidence.renewed_at is not None and terms.standing(evidence, now=now) is Standing.IN_DOUBT:
        assert evidence.reached_at is not None
        assert now - evidence.reached_at < terms.proof_seconds <= 3.0


@given(terms=_terms(), renewed_at=_seconds)
def test_the_broker_is_probed_once_a_renewal_is_late_and_before_the_lease_is_in_doubt(
    terms: Terms, renewed_at: float
) -> None:
    evidence = Evidence(renewed_at=renewed_at)
    due_at = renewed_at + terms.heartbeat_seconds
    assert due_at < terms.probes_broker_from(evidence) < terms.certain_until(evidence)


@given(terms=_terms(), evidence=_evidence, later=_seconds, now=_seconds)
def test_new_evidence_never_lowers_the_standing_and_time_never_raises_it(
    terms: Terms, evidence: Evidence, later: float, now: float
) -> None:
    assume(evidence.renewed_at is not None)
    assert evidence.renewed_at is not None
    rank = [Standing.OVER, Standing.IN_DOUBT, Standing.CERTAIN].index
    standing = rank(terms.standing(evidence, now=now))
    assert rank(terms.standing(evidence, now=now + later)) <= standing
    renewed = Evidence(renewed_at=evidence.renewed_at + later, reached_at=evidence.reached_at)
    assert rank(terms.standing(renewed, now=now)) >= standing
    reached = Evidence(renewed_at=evidence.renewed_at, reached_at=max(later, evidence.reached_at or 0.0))
    assert rank(terms.standing(reached, now=now)) >= standing
