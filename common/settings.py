"""Settings that both services share, from the environment `TURNSTILE_*`.

A wrong value ends the process with one line that names the variable (`read_settings`), exit code 2.
"""

import sys
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from turnstile.common.exit_codes import ExitCode
from turnstile.common.invalid_values import invalid_values
from turnstile.common.urls import amqp_urls, check_database_url, check_http_url


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Text = TypeVar("Text", bound=str)
CommaSeparated = Annotated[list[Text], NoDecode, BeforeValidator(_split)]


class CommonSettings(BaseSettings):
    """The settings of every service."""

    model_config = SettingsConfigDict(env_prefix="TURNSTILE_", extra="ignore", env_ignore_empty=True)

    amqp_url: SecretStr = Field(
        default=SecretStr("amqp://guest:guest@127.0.0.1:5672/"),
        description="amqp://user:password@host:port/vhost; with several nodes: their URLs, comma-separated.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="OTLP endpoint for traces, like http://127.0.0.1:4318. Default: no traces. "
        "Needs the extra `otel`.",
    )
    log_format: Literal["console", "json"] = Field(default="console")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO")

    @field_validator("amqp_url")
    @classmethod
    def _is_amqp(cls, value: SecretStr) -> SecretStr:
        amqp_urls(value.get_secret_value())
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None:
            check_http_url(value)
        return value


class DatabaseSettings(CommonSettings):
    """The settings of what uses the database: the executor and its commands."""

    database_url: SecretStr = Field(
        default=SecretStr("postgresql://postgres@127.0.0.1:5432/turnstile"),
        description="postgresql://user:password@host:port/database; with several hosts: "
        "...@a:5432,b:5432/database?target_session_attrs=primary",
    )

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, value: SecretStr) -> SecretStr:
        check_database_url(value.get_secret_value())
        return value


S = TypeVar("S", bound=CommonSettings)


def read_settings(kind: type[S], **overrides: Any) -> S:
    """Return the settings; `overrides` come first. A wrong value ends the process with exit code 2."""
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        for problem in invalid_values(error.errors(include_url=False, include_input=False)):
            name = "_".join(map(str, problem.location)).upper()
            sys.stderr.write(f"TURNSTILE_{name}: {problem.sentence}\n" if name else f"{problem.sentence}\n")
        raise SystemExit(ExitCode.USAGE) from None
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(ExitCode.USAGE) from None
