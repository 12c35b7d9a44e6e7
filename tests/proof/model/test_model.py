"""The SQL functions behave like the model, step by step, for random sequences of operations."""

import asyncio
import os

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.model.machine import Machine
from tests.support.protocol import Protocol
from tests.support.sizes import sizes


@sizes("examples", short=30, whole=200)
@pytest.mark.timeout(400)
def test_the_functions_behave_like_the_model(database_url: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        Machine.runner = runner
        connection = runner.run(asyncpg.connect(database_url))
        Machine.protocol = Protocol(connection)
        try:
            run_state_machine_as_test(
                Machine,
                settings=settings(
                    max_examples=examples, stateful_step_count=50, deadline=None, print_blob=True,
                    derandomize=os.environ.get("CI", "").lower() in ("true", "1"),
                    suppress_health_check=[HealthCheck.too_slow],
                ),
            )  # fmt: skip
        finally:
            runner.run(connection.close())
