"""This host: its settings and its limits, judged by `CHECKS`."""

import resource
from collections.abc import Mapping
from typing import Final

from turnstile.common.known_settings import unknown_settings
from turnstile.executor.doctor.findings import Checks, Facts, Verdict
from turnstile.executor.settings import LEADER_CONNECTIONS, ExecutorSettings

_OTHER_FILES: Final = 128
"""Connections to the broker and of HTTP, logs and modules."""


def read_host(facts: Facts, settings: ExecutorSettings, environment: Mapping[str, str]) -> None:
    """Add what this process has. Its limits are those of the shell or unit that starts it."""
    facts["unknown"] = [each.sentence for each in unknown_settings(environment)]
    facts["files_max"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    facts["files_needed"] = (
        settings.database_connections + LEADER_CONNECTIONS + settings.webhook_concurrency + _OTHER_FILES
    )


def _settings(facts: Facts) -> Verdict:
    if facts["unknown"]:
        return "warning", "; ".join(facts["unknown"]) + ": correct or remove what has no effect"
    return "ok", "all values are valid, and all names are known"


def _open_files(facts: Facts) -> Verdict:
    limit, needed = facts["files_max"], facts["files_needed"]
    if 0 <= limit < needed:
        return "warning", (
            f"a process may open {limit} files here, and an executor may need {needed}: raise the limit "
            "('ulimit -n', LimitNOFILE of the unit), or lower TURNSTILE_WEBHOOK_CONCURRENCY"
        )
    return "ok", f"a process may open {'any number of' if limit < 0 else limit} files"


CHECKS: Final[Checks] = {"settings": _settings, "open files": _open_files}
