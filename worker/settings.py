"""Settings of the worker service."""

import socket
from typing import Annotated

from pydantic import Field, SecretStr, StringConstraints, field_validator

from turnstile.common.api_token import CA_FILE, TOKEN, TOKEN_FILE, api_token
from turnstile.common.cli import ENVIRONMENT_ONLY
from turnstile.common.fields import Duration, Pool
from turnstile.common.settings import CommaSeparated, CommonSettings
from turnstile.common.urls import INVALID_API_URL, check_authority, is_api_url

SettingName = Annotated[str, StringConstraints(pattern=r"^TURNSTILE_[A-Z0-9_]+$")]


class WorkerSettings(CommonSettings):
    """The settings of `worker serve`."""

    worker_name: str = Field(default_factory=socket.gethostname, description="Display name of this worker.")
    worker_pools: CommaSeparated[Pool] = Field(
        default=[], description="Pools to serve, comma-separated. Default: the pools of the served actions."
    )
    worker_concurrency: int = Field(default=10, ge=1, le=10_000, description="Maximum concurrent executions.")
    worker_http_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of /livez, /readyz and /metrics. Default: no port."
    )
    worker_http_host: str = Field(default="127.0.0.1", description="Address of /livez, /readyz and /metrics.")
    api_url: str | None = Field(
        default=None,
        description="URL of the HTTP API, like http://127.0.0.1:8000. With it, an outage of the broker stops"
        " no running execution, however long it lasts. Default: the lease decides.",
    )
    api_token: Annotated[SecretStr | None, ENVIRONMENT_ONLY] = Field(
        default=None, description="Token for TURNSTILE_API_URL."
    )
    api_token_file: str | None = Field(
        default=None, description="File that contains the token for TURNSTILE_API_URL."
    )
    api_ca_file: str | None = Field(
        default=None,
        description="PEM file of the certificate authority of TURNSTILE_API_URL. Default: the system's"
        " authorities.",
    )
    lease_duration: Duration = Field(
        default=30.0, gt=0, description="Time without a heartbeat after which a worker is lost."
    )
    heartbeat_interval: Duration = Field(
        default=5.0, gt=0, description="Interval at which a worker renews its lease."
    )
    result_bytes_max: int = Field(
        default=1024 * 1024, ge=1024, description="Maximum size of the result of an execution, in bytes."
    )
    drain_timeout: Duration = Field(
        default=30.0, ge=0, description="Maximum time that a shutdown waits for running executions."
    )
    stop_grace: Duration = Field(
        default=5.0, ge=0, description="Grace period between the cancel of an execution and its kill."
    )
    loop_blocked_max: Duration = Field(
        default=300.0,
        ge=1.0,
        description="Time for which an async action may block the event loop. Then the worker ends, and"
        " what it ran is reclaimed.",
    )
    log_flush_interval: Duration = Field(
        default=1.0,
        ge=0.05,
        description="Interval at which logs of running executions are published.",
    )
    child_environment: CommaSeparated[SettingName] = Field(
        default=[],
        description="TURNSTILE_* variables that plain functions and commands inherit, comma-separated."
        " Default: none.",
    )
    child_processes: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Maximum number of child processes for plain functions."
        " Default: TURNSTILE_WORKER_CONCURRENCY.",
    )
    child_runs_max: int | None = Field(
        default=None, ge=1, description="Runs after which a child process is replaced. Default: never."
    )
    child_memory_max: int | None = Field(
        default=None,
        ge=1,
        description="Memory in bytes: a child process that has more after a run is replaced. Default: never.",
    )

    @field_validator("api_url")
    @classmethod
    def _is_api(cls, value: str | None) -> str | None:
        if value is not None and not is_api_url(value):
            raise ValueError(INVALID_API_URL)
        return value

    def model_post_init(self, _: object) -> None:
        """Check the settings that depend on each other."""
        if self.heartbeat_interval * 2 > self.lease_duration:
            raise ValueError(
                f"TURNSTILE_HEARTBEAT_INTERVAL ({self.heartbeat_interval:g} s) must be at most half of "
                f"TURNSTILE_LEASE_DURATION ({self.lease_duration:g} s)"
            )
        if self.api_url is not None:
            self.bearer_token()
            if self.api_ca_file is not None:
                check_authority({CA_FILE: self.api_ca_file}, CA_FILE)

    def bearer_token(self) -> str | None:
        """Return the token for `api_url`; raises ValueError."""
        token = "" if self.api_token is None else self.api_token.get_secret_value()
        return api_token({TOKEN: token, TOKEN_FILE: self.api_token_file or ""})
