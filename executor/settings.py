"""Settings of the executor service."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from turnstile.common.action_definition import Duration
from turnstile.common.command_line import ENVIRONMENT_ONLY
from turnstile.common.settings import CommonSettings
from turnstile.common.tls import check_key_pair
from turnstile.executor.bearers import Bearers, read_entries
from turnstile.executor.retention.settings import RetentionSettings
from turnstile.executor.webhooks.settings import WebhookSettings


class ExecutorSettings(RetentionSettings, WebhookSettings, CommonSettings):
    """What `executor serve` needs to know."""

    http_host: str = Field(default="127.0.0.1", description="Address of the HTTP API.")
    http_port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP API; 0: any free one.")
    api_tokens: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="Bearer tokens by commas: token (all rights), or name:role:token with the role read, "
        "submit or operate.",
    )
    api_tokens_file: Path | None = Field(
        default=None, description="A file with more of them, one on each line; read again when it changes."
    )
    http_tls_cert: Path | None = Field(
        default=None, description="Certificate of the HTTP API, in PEM; with it the API speaks TLS only."
    )
    http_tls_key: Path | None = Field(default=None, description="Its key, in PEM and without a password.")
    insecure: bool = Field(default=False, description="Serve other hosts without a token.")
    watchdog_interval: Duration = Field(default=1.0, gt=0, description="How often the watchdog looks.")
    dispatch_timeout: Duration = Field(default=30.0, gt=0, description="Unclaimed so long: offered again.")
    settle_timeout: Duration = Field(default=10.0, gt=0, description="Unsettled so long: told again.")
    stop_timeout: Duration = Field(
        default=10.0, gt=0, description="Not stopped so long after it should have: told again, then ended."
    )
    drain_timeout: Duration = Field(default=10.0, ge=0, description="Longest graceful stop.")
    lock_timeout: Duration = Field(
        default=0.25,
        gt=0,
        le=60,
        description="Longest wait for a row that another database session holds; then the others go on.",
    )
    batch_max: int = Field(default=500, ge=1, le=10_000, description="Most messages in one transaction.")
    database_connections: int = Field(default=6, ge=2, le=100, description="Size of the connection pool.")

    @field_validator("api_tokens")
    @classmethod
    def _are_entries(cls, value: SecretStr) -> SecretStr:
        read_entries(value.get_secret_value())
        return value

    @field_validator("api_tokens_file")
    @classmethod
    def _names_somebody(cls, value: Path | None) -> Path | None:
        Bearers([], value)
        return value

    @model_validator(mode="after")
    def _is_a_pair(self) -> Self:
        given = {"TURNSTILE_HTTP_TLS_CERT": self.http_tls_cert, "TURNSTILE_HTTP_TLS_KEY": self.http_tls_key}
        check_key_pair({name: str(path) for name, path in given.items() if path is not None}, *given)
        return self

    def bearers(self) -> Bearers:
        """Return who is let in; raises ValueError for a file that is not fit any more."""
        return Bearers(read_entries(self.api_tokens.get_secret_value()), self.api_tokens_file)

    def own_hosts(self) -> frozenset[str] | None:
        """Return the names under which programs of this host alone may ask; None: where tokens decide."""
        if self.bearers().required or self.insecure:
            return None
        return frozenset({"localhost", self.http_host.lower()})

    def is_exposed(self) -> bool:
        """Tell whether the API would serve other hosts without a token."""
        return not (self.bearers().required or self.insecure or _is_loopback(self.http_host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
