"""The examples of docs/worker-protocol.md are messages of the protocol."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from turnstile.common import report_wire, worker_wire

PAGE = Path(__file__).parents[3] / "docs" / "worker-protocol.md"
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
DECODERS: dict[str, Callable[[bytes], object]] = {
    worker_wire.WORKER_HELLO: worker_wire.decode_hello,
    worker_wire.WORKER_HEARTBEAT: worker_wire.decode_heartbeat,
    worker_wire.WORKER_REPORTS: worker_wire.decode_reports,
    worker_wire.LEADER_MESSAGES: worker_wire.decode_to_session,
    report_wire.EXECUTION_LOG: report_wire.decode_log,
    report_wire.EXECUTION_PROGRESS: report_wire.decode_progress,
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_read(example: str) -> None:
    assert DECODERS[json.loads(example)["type"]](example.encode())


def test_every_kind_of_message_has_an_example() -> None:
    assert {json.loads(example)["type"] for example in EXAMPLES} == set(DECODERS)
