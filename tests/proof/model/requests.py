"""What is drawn: requests, limits, workers, ends."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from tests.proof.model.lines import Asked
from tests.support.protocol import request
from turnstile.common.domain.states import Status
from turnstile.executor.decisions import Admission

LINES = [("plain", ""), ("keyed", "x"), ("keyed", "y"), ("bounded", "")]
BOUNDS = {"plain": None, "keyed": None, "bounded": 2}
LATER = datetime(2100, 1, 1, tzinfo=UTC)
NOBODY = 10**15
RECLAIMS_MAX = 2

seldom = st.sampled_from([False, False, False, True])
limits = st.sampled_from([None, 0, 1, 1, 2, 2, 3, 5])
asks = st.builds(
    Asked,
    line=st.sampled_from(LINES),
    content=st.integers(0, 1),
    delayed=seldom,
    mortal=st.booleans(),
    key=st.sampled_from([None, None, None, "k", "1"]),
)
nth = st.integers(0, 999)
some = st.lists(nth, min_size=1, max_size=4)
ends = st.sampled_from([Status.COMPLETED, Status.FAILED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED])
strayed = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
"""How far an attempt's number is off."""
telling = st.sampled_from(["as it is"] * 5 + ["slot message"] * 2 + ["another end"])
"""What a message says of the end of its attempt."""


def admission(asked: Asked) -> Admission:
    ref, key = asked.line
    return request(
        ref, concurrency_key=key or None, parameters={"content": asked.content}, idempotency_key=asked.key,
        run_at=LATER if asked.delayed else None, ttl=3600 if asked.mortal else None,
    )  # fmt: skip
