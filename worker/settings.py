"""Settings of the worker service."""

import socket
from typing import Annotated

from pydantic import Field, StringConstraints

from turnstile.common.action_definition import Duration, Pool
from turnstile.common.settings import CommaSeparated, CommonSettings

SettingName = Annotated[str, StringConstraints(pattern=r"^TURNSTILE_[A-Z0-9_]+$")]


class WorkerSettings(CommonSettings):
    """What `worker serve` needs to know."""

    worker_name: str = Field(
        default_factory=socket.gethostname, description="Name of this worker, for people."
    )
    worker_pools: CommaSeparated[Pool] = Field(
        default=[], description="Pools served, by commas; none: those of the actions that it serves."
    )
    worker_concurrency: int = Field(default=10, ge=1, le=10_000, description="Executions at once.")
    worker_http_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of /livez, /readyz and /metrics; off unless set."
    )
    worker_http_host: str = Field(default="127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    drain_timeout: Duration = Field(default=30.0, ge=0, description="How long a stop waits for running work.")
    stop_grace: Duration = Field(
        default=5.0, ge=0, description="Between asking an execution to stop and a kill."
    )
    log_flush_interval: Duration = Field(
        default=1.0, ge=0.05, description="How often the record gets what running executions have logged."
    )
    acknowledge_after: Duration = Field(
        default=900.0,
        gt=0,
        description="A run longer than this is acknowledged early, so that the broker's acknowledgement"
        " timeout never meets it.",
    )
    child_environment: CommaSeparated[SettingName] = Field(
        default=[],
        description="TURNSTILE_* variables that plain functions and commands may see, by commas; no others.",
    )
    database_connections: int = Field(default=3, ge=1, le=100, description="Size of the connection pool.")
