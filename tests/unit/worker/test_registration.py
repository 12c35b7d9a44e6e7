"""What a hello says, and what is logged of definitions that the installation has otherwise."""

import os
from collections.abc import Callable

import pytest

from turnstile.common.action_definition import ActionDefinition
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.parameters import schemas_of_function
from turnstile.worker.registration import Differences, worker_config
from turnstile.worker.settings import WorkerSettings


async def render(customer_id: int) -> str:
    return str(customer_id)


def actions(**fields: object) -> list[RegisteredAction]:
    definition = ActionDefinition.model_validate({"ref": "reports.render", "pool": "slow", **fields})
    return [RegisteredAction(definition=definition, module="reports", function=render)]


def settings(**fields: object) -> WorkerSettings:
    return WorkerSettings.model_validate({"worker_name": "w", **fields})


SCHEMAS = {"reports.render": schemas_of_function(render)}


def test_a_hello_says_all_that_the_installation_may_lack_and_shows() -> None:
    given = settings(drain_timeout=7, heartbeat_interval=2, stop_grace=3, worker_concurrency=4)
    config = worker_config(given, actions(timeout="5m", max_concurrent=2), SCHEMAS, ["a note\0"])
    assert (config.pools, config.actions, config.concurrency) == (("slow",), ("reports.render",), 4)
    (definition,) = config.definitions
    # The leader reads it as it reads what an operator sends.
    assert ActionDefinition.model_validate(definition) == actions(timeout=300, max_concurrent=2)[0].definition
    about = config.about
    assert (about["pid"], about["drain_seconds"], about["stop_grace_seconds"]) == (os.getpid(), 9.0, 3.0)
    assert about["start_notes"] == ["a note"]
    assert about["schemas"][0]["parameters"]["required"] == ["customer_id"]


Logged = Callable[[], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_stored_definition_that_differs_is_logged_with_the_command_that_mends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours = actions(max_concurrent=2, timeout="5m", rate={"starts": 3, "per": "1s"})
    stored = {**ours[0].definition.model_dump(mode="json"), "max_concurrent": 5, "of_a_later_version": 1}
    Differences(ours, SCHEMAS, ["slow"]).log([stored])
    (record,) = caplog.records
    assert record.getMessage() == "action_differs"
    assert vars(record)["differences"] == "max_concurrent: stored 5, code 2"
    assert vars(record)["to_apply_the_code"] == "'executor actions limit reports.render 2'"


def test_what_is_stored_as_in_the_code_is_not_logged(logged: Logged) -> None:
    ours = actions(max_concurrent=2, timeout="5m", retry={"max_attempts": 3}, order="arrival")
    Differences(ours, SCHEMAS, ["slow"]).log([ours[0].definition.model_dump(mode="json")])
    Differences(ours, SCHEMAS, ["slow"]).log([{"ref": "other"}])
    assert logged() == []


def test_a_pool_without_an_action_is_logged_and_the_stored_pool_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Differences(actions(), SCHEMAS, ["slow", "unused"]).log([])
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["pool"]) == ("pool_without_actions", "unused")
    caplog.clear()
    stored = {**actions()[0].definition.model_dump(mode="json"), "pool": "fast"}
    Differences(actions(), SCHEMAS, ["slow"]).log([stored])
    assert {vars(each)["pools_of_its_actions"] for each in caplog.records} == {"fast"}
