"""Warns of variables `TURNSTILE_*` that no part of Turnstile reads: a misspelt setting has no effect.

In: the environment of a service, a command or a client. Out: one line for each unknown variable, with the
nearest known name and without its value, which may be a secret.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from turnstile.common.nearest import nearest

logger = logging.getLogger(__name__)

PREFIX: Final = "TURNSTILE_"
_NAMES: Final[Mapping[str, str]] = {
    "services": "AMQP_URL OTLP_ENDPOINT LOG_FORMAT LOG_LEVEL DRAIN_TIMEOUT",
    "executor": "DATABASE_URL DATABASE_CONNECTIONS QUEUE_TYPE PARAMETERS_BYTES_MAX EVENT_RESULT_MAX_BYTES "
    "HTTP_HOST HTTP_PORT HTTP_TLS_CERT HTTP_TLS_KEY API_TOKENS API_TOKENS_FILE INSECURE "
    "WATCHDOG_INTERVAL STOP_TIMEOUT",
    "retention": "RETENTION_AGE RETENTION_COUNT RETENTION_WORKERS RETENTION_AUDIT_LOG RETENTION_HISTORY "
    "RETENTION_DEAD_LETTERS RETENTION_DEAD_LETTERS_COUNT RETENTION_DEAD_LETTERS_BYTES",
    "webhooks": "WEBHOOK_SECRET WEBHOOK_TIMEOUT WEBHOOK_ATTEMPTS WEBHOOK_RETRY_DELAY WEBHOOK_RETRY_DELAY_MAX "
    "WEBHOOK_AGE_MAX WEBHOOK_CONCURRENCY WEBHOOK_ALLOW_PRIVATE WEBHOOK_KEEP",
    "worker": "WORKER_NAME WORKER_POOLS WORKER_CONCURRENCY WORKER_HTTP_HOST WORKER_HTTP_PORT STOP_GRACE "
    "LEASE_DURATION HEARTBEAT_INTERVAL RESULT_BYTES_MAX LOG_FLUSH_INTERVAL LOOP_BLOCKED_MAX "
    "CHILD_ENVIRONMENT CHILD_PROCESSES CHILD_RUNS_MAX CHILD_MEMORY_MAX",
    "runs": "RUN EXECUTION_ID ATTEMPT ACTION_REF",
    "clients": "API_URL API_TOKEN API_TOKEN_FILE API_CA_FILE ANSWER_TIMEOUT",
    "administration": "MANAGEMENT_URL POSTGRESQL_BIN EXECUTOR_PASSWORD WORKER_PASSWORD CLIENT_PASSWORD "
    "EXECUTOR_PASSWORD_FILE WORKER_PASSWORD_FILE CLIENT_PASSWORD_FILE",
    "tests": "CRASH_AT STRESS_ACTIONS STRESS_TRACES TEST_DATABASE_URL TEST_AMQP_URL TEST_MANAGEMENT_URL",
}
"""The variables by the part that reads or sets them; a test compares them with the settings of all parts."""
KNOWN: Final = frozenset(PREFIX + name for names in _NAMES.values() for name in names.split())
_CHILD_ENVIRONMENT: Final = "TURNSTILE_CHILD_ENVIRONMENT"
# Kubernetes sets these in every pod for a service called turnstile or turnstile-executor.
_SERVICE_LINK: Final = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
_SERVICE_LINK_URL: Final = re.compile(r"(tcp|udp|sctp)://")


class UnknownSetting(NamedTuple):
    """A variable that nothing reads."""

    variable: str
    nearest: str | None
    """The most similar known variable."""

    @property
    def sentence(self) -> str:
        """What is wrong, for people."""
        meant = "" if self.nearest is None else f"; did you mean {self.nearest}?"
        return f"{self.variable}: no part of Turnstile reads this variable{meant}"


def unknown_settings(environment: Mapping[str, str]) -> list[UnknownSetting]:
    """Return the variables `TURNSTILE_*` that nothing reads, by name; case is ignored."""
    return [UnknownSetting(name, _nearest(name)) for name in sorted(_unknown(environment))]


def warn_of_unknown_settings(environment: Mapping[str, str], *, warned: set[str] | None = None) -> None:
    """Log a warning for each variable `TURNSTILE_*` that nothing reads.

    `warned`: variables that are not named again; those that are named are added.
    """
    warned = set() if warned is None else warned
    for each in unknown_settings(environment):
        if each.variable in warned:
            continue
        warned.add(each.variable)
        meant = {} if each.nearest is None else {"did_you_mean": each.nearest}
        logger.warning("unknown_setting", extra={"variable": each.variable, **meant})


def _nearest(variable: str) -> str | None:
    # The prefix, which all have, would make all similar.
    found = nearest(variable[len(PREFIX) :], (name.removeprefix(PREFIX) for name in KNOWN))
    return None if found is None else PREFIX + found


def _unknown(environment: Mapping[str, str]) -> Iterator[str]:
    # Variables that actions inherit are the user's own.
    inherited = {name.strip() for name in environment.get(_CHILD_ENVIRONMENT, "").split(",")}
    for name, value in environment.items():
        is_own = name.upper().startswith(PREFIX) and name.upper() not in KNOWN and name not in inherited
        if is_own and not (_SERVICE_LINK.search(name) or _SERVICE_LINK_URL.match(value)):
            yield name
