"""Settings that both services share, from the environment `TURNSTILE_*`.

A wrong value ends the process with one line that names the variable (`read_settings`), exit code 2.
"""

import sys
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from turnstile.common.action_definition import Duration
from turnstile.common.amqp_url import amqp_urls
from turnstile.common.database_url import check_database_url


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Text = TypeVar("Text", bound=str)
CommaSeparated = Annotated[list[Text], NoDecode, BeforeValidator(_split)]


class CommonSettings(BaseSettings):
    """What every service needs to know."""

    model_config = SettingsConfigDict(env_prefix="TURNSTILE_", extra="ignore", env_ignore_empty=True)

    database_url: SecretStr = Field(
        default=SecretStr("postgresql://postgres@127.0.0.1:5432/turnstile"),
        description="postgresql://user:password@host:port/database; of several hosts: "
        "...@a:5432,b:5432/database?target_session_attrs=primary",
    )
    amqp_url: SecretStr = Field(
        default=SecretStr("amqp://guest:guest@127.0.0.1:5672/"),
        description="amqp://user:password@host:port/vhost; of several nodes: whole URLs, by commas.",
    )
    queue_type: Literal["quorum", "classic"] = Field(
        default="quorum", description="Type of the broker's queues."
    )
    lease_duration: Duration = Field(
        default=15.0, gt=0, description="How long a silent worker keeps its work."
    )
    heartbeat_interval: Duration = Field(
        default=5.0, gt=0, description="How often a worker renews its lease."
    )
    parameters_bytes_max: int = Field(
        default=256 * 1024, ge=1024, description="Largest parameters of one request."
    )
    result_bytes_max: int = Field(
        default=1024 * 1024, ge=1024, description="Largest result of one execution."
    )
    event_result_max_bytes: int = Field(
        default=64 * 1024, ge=0, description="Largest result inside an event."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]+",
        description="Where traces go, like http://127.0.0.1:4318; off unless set. Needs turnstile[otel].",
    )
    log_format: Literal["console", "json"] = Field(default="console")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO")

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, value: SecretStr) -> SecretStr:
        check_database_url(value.get_secret_value())
        return value

    @field_validator("amqp_url")
    @classmethod
    def _is_amqp(cls, value: SecretStr) -> SecretStr:
        amqp_urls(value.get_secret_value())
        return value

    def model_post_init(self, _: object) -> None:
        """Check what two settings must agree on."""
        if self.heartbeat_interval * 2 > self.lease_duration:
            raise ValueError(
                f"TURNSTILE_HEARTBEAT_INTERVAL ({self.heartbeat_interval:g} s) must be at most half of "
                f"TURNSTILE_LEASE_DURATION ({self.lease_duration:g} s)"
            )


S = TypeVar("S", bound=CommonSettings)


def read_settings(kind: type[S], **overrides: Any) -> S:
    """Return the settings, options from the command line first; a wrong one ends the process with code 2."""
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(step) for step in problem["loc"]).upper()
            message = problem["msg"].removeprefix("Value error, ")
            sys.stderr.write(f"TURNSTILE_{name}: {message}\n" if name else f"{message}\n")
        raise SystemExit(2) from None
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
