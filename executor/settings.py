"""Settings of the executor service: its own, those of retention and those of webhooks."""

import base64
import binascii
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator, model_validator

from turnstile.common.cli import ENVIRONMENT_ONLY
from turnstile.common.fields import Duration
from turnstile.common.settings import DatabaseSettings
from turnstile.common.urls import check_http_url, check_key_pair, is_loopback
from turnstile.executor.api_tokens import ApiTokens, read_entries

LEADER_CONNECTIONS: Final = 6
"""How many connections to the database the leader's process of an executor opens at most."""
_WEBHOOK_SECRET_PREFIX: Final = "whsec_"
_WEBHOOK_SECRET_BYTES_MIN: Final = 16


def _forever(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "forever" else value


Age = Annotated[Duration | None, BeforeValidator(_forever)]
"""A duration, or `forever`."""


class ManagementSettings(BaseModel):
    """The management API of the broker, for commands of an administrator; services do not use it."""

    management_url: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="RabbitMQ's management API: http://user:password@host:15672. setup-permissions needs an "
        "administrator; without it, it writes the definitions for the broker to the credentials folder. "
        "doctor needs a user with the tag policymaker; without it, it does not check policies.",
    )

    @field_validator("management_url")
    @classmethod
    def _is_management(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value():
            check_http_url(value.get_secret_value())
        return value


class RetentionSettings(BaseModel):
    """How long history is kept, unless an action overrides it."""

    retention_age: Age = Field(
        default=30 * 86400.0, description="Age at which ended executions are deleted, or: forever."
    )
    retention_count: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Maximum number of ended executions kept per action. Default: no limit.",
    )
    retention_workers: Duration = Field(
        default=7 * 86400.0, ge=3600, description="How long stopped and lost workers are listed."
    )
    retention_audit_log: Duration = Field(
        default=365 * 86400.0,
        ge=30 * 86400,
        description="How long the audit log is kept, with the changes of definitions; at least 30d.",
    )
    retention_history: Duration = Field(
        default=7 * 86400.0, ge=3600, description="How long the counts by action and minute are kept."
    )
    retention_dead_letters: Age = Field(
        default=30 * 86400.0, description="How long dead letters are kept, or: forever."
    )
    retention_dead_letters_count: int = Field(
        default=100_000,
        ge=0,
        le=10_000_000,
        description="Maximum number of dead letters kept; the oldest are deleted first.",
    )
    retention_dead_letters_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=0,
        le=2**50,
        description="Maximum bytes of dead letters kept; the oldest are deleted first.",
    )


class WebhookSettings(BaseModel):
    """Webhooks: POSTs to the URL of an execution when it ends."""

    webhook_secret: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="Key that signs webhooks: whsec_ and base64, or plain text. Several, comma-separated, "
        "during a rotation.",
    )
    webhook_timeout: Duration = Field(
        default=10.0,
        gt=0,
        le=300,
        description="Timeout of a webhook's POST, including the connection.",
    )
    webhook_attempts: int = Field(
        default=12, ge=1, le=1000, description="Maximum number of POSTs; then the webhook fails."
    )
    webhook_retry_delay: Duration = Field(
        default=5.0, gt=0, description="Delay before the second POST; each further delay is twice as long."
    )
    webhook_retry_delay_max: Duration = Field(
        default=3600.0, gt=0, description="Maximum delay between two POSTs."
    )
    webhook_age_max: Duration = Field(
        default=86400.0,
        gt=0,
        description="Maximum time that a webhook may be due and pending; then it fails.",
    )
    webhook_concurrency: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="Maximum concurrent webhooks: half for new receivers, a quarter for prompt ones, "
        "the rest for slow and silent ones.",
    )
    webhook_allow_private: bool = Field(
        default=False, description="Allow webhooks to private, loopback and link-local addresses."
    )
    webhook_keep: Duration = Field(
        default=7 * 86400.0, description="How long delivered and failed webhooks are kept."
    )

    @field_validator("webhook_secret")
    @classmethod
    def _can_sign(cls, value: SecretStr) -> SecretStr:
        read_webhook_secrets(value.get_secret_value())
        return value

    def webhook_lease_seconds(self) -> float:
        """Return how long one replica owns a claimed webhook: the POST and the work around it."""
        return self.webhook_timeout * 2

    def webhook_secrets(self) -> list[bytes]:
        """Return the keys that sign webhooks; an empty list: they are not signed."""
        return read_webhook_secrets(self.webhook_secret.get_secret_value())


class ExecutorSettings(RetentionSettings, WebhookSettings, DatabaseSettings):
    """The settings of `executor serve`."""

    queue_type: Literal["quorum", "classic"] = Field(
        default="quorum", description="Type of the queues in the broker."
    )
    parameters_bytes_max: int = Field(
        default=256 * 1024, ge=1024, description="Maximum size of the parameters of a request, in bytes."
    )
    event_result_max_bytes: int = Field(
        default=64 * 1024, ge=0, description="Maximum size of a result that events include, in bytes."
    )
    http_host: str = Field(default="127.0.0.1", description="Address of the HTTP API.")
    http_port: int = Field(
        default=8000, ge=0, le=65535, description="Port of the HTTP API; 0: any free port."
    )
    api_tokens: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="Bearer tokens, comma-separated: token (role operate), or name:role:token with the role "
        "read, submit, operate or admin.",
    )
    api_tokens_file: Path | None = Field(
        default=None, description="File with further tokens, one per line; reloaded when it changes."
    )
    http_tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate of the HTTP API; if set, the API accepts only TLS.",
    )
    http_tls_key: Path | None = Field(
        default=None, description="PEM file with the private key of the certificate, without a password."
    )
    insecure: bool = Field(default=False, description="Accept requests from other hosts without a token.")
    watchdog_interval: Duration = Field(
        default=1.0,
        gt=0,
        description="Interval at which webhooks that are due, and old rows, are looked for.",
    )
    stop_timeout: Duration = Field(
        default=15.0,
        gt=0,
        description="Time that a worker has to stop an attempt after a cancel; then the leader ends the "
        "attempt without it. An attempt whose timeout is over gets a cancel after the same time.",
    )
    drain_timeout: Duration = Field(
        default=10.0, ge=0, description="Maximum duration of a graceful shutdown."
    )
    database_connections: int = Field(default=6, ge=2, le=100, description="Size of the connection pool.")

    @field_validator("api_tokens")
    @classmethod
    def _are_entries(cls, value: SecretStr) -> SecretStr:
        read_entries(value.get_secret_value())
        return value

    @field_validator("api_tokens_file")
    @classmethod
    def _has_valid_tokens(cls, value: Path | None) -> Path | None:
        ApiTokens([], value)
        return value

    @model_validator(mode="after")
    def _is_a_pair(self) -> Self:
        given = {"TURNSTILE_HTTP_TLS_CERT": self.http_tls_cert, "TURNSTILE_HTTP_TLS_KEY": self.http_tls_key}
        check_key_pair({name: str(path) for name, path in given.items() if path is not None}, *given)
        return self

    def accepted_tokens(self) -> ApiTokens:
        """Return the accepted tokens; raises ValueError if the token file has become invalid."""
        return ApiTokens(read_entries(self.api_tokens.get_secret_value()), self.api_tokens_file)

    def own_hosts(self) -> frozenset[str] | None:
        """Return the host names that local clients may use; None if tokens protect the API."""
        if self.accepted_tokens().required or self.insecure:
            return None
        return frozenset({"localhost", self.http_host.lower()})

    def is_exposed(self) -> bool:
        """Return whether the API would accept requests from other hosts without a token."""
        return not (self.accepted_tokens().required or self.insecure or is_loopback(self.http_host))


def read_webhook_secrets(text: str) -> list[bytes]:
    """Return the keys in `text`; raises ValueError, whose message contains no part of them."""
    return [_read_secret(secret.strip()) for secret in text.split(",") if secret.strip()]


def _read_secret(secret: str) -> bytes:
    if not secret.startswith(_WEBHOOK_SECRET_PREFIX):
        key = secret.encode()
    else:
        try:
            key = base64.b64decode(secret.removeprefix(_WEBHOOK_SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(
                "after whsec_ comes base64, like the output of: openssl rand -base64 32"
            ) from None
    if len(key) < _WEBHOOK_SECRET_BYTES_MIN:
        raise ValueError(
            f"a secret of {len(key)} bytes; expected at least {_WEBHOOK_SECRET_BYTES_MIN}, like whsec_ "
            "and the output of: openssl rand -base64 32"
        )
    return key
