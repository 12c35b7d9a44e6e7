"""What the leader's process gets of the settings, over a socket and not in its arguments or environment."""

import msgspec
from pydantic import SecretStr

from turnstile.executor.leader_process import LeaderSettings
from turnstile.executor.serving import leader_settings
from turnstile.executor.settings import ExecutorSettings


def test_the_leader_gets_the_settings_of_the_command() -> None:
    settings = ExecutorSettings(
        database_url=SecretStr("postgresql://user:secret@host/db"), queue_type="classic",
        parameters_bytes_max=2048, event_result_max_bytes=7, log_format="json", log_level="DEBUG",
    )  # fmt: skip
    given = leader_settings(settings)
    assert msgspec.json.decode(msgspec.json.encode(given), type=LeaderSettings) == given
    assert given.database_url == "postgresql://user:secret@host/db"
    assert (given.queue_type, given.parameters_bytes_max, given.event_result_max_bytes) == (
        "classic",
        2048,
        7,
    )
    assert (given.log_format, given.log_level) == ("json", "DEBUG")
