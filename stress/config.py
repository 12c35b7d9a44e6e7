"""The configuration of a run: the options of `stress run`, parsed and validated before anything starts.

In: text of the command line. Out: a `RunConfig` and an `Installation`, or ValueError that names the option,
what was expected and an example. `presets` turns a `RunConfig` into scenarios.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from turnstile.common.domain.durations import format_duration
from turnstile.common.fields import Duration
from turnstile.common.invalid_values import invalid_values
from turnstile.common.urls import INVALID_API_URL, amqp_urls, is_api_url
from turnstile.stress.installation import Installation
from turnstile.stress.scenario import DurationMix, FaultKind

EXECUTIONS_MAX: Final = 10_000_000
_ALL: Final = "all"
_FAULTS: Final = {kind.value.replace(" ", "-"): kind for kind in FaultKind}


class Preset(StrEnum):
    """Loads that answer one question each; the value is the name on the command line."""

    SMOKE = "smoke"
    """Does it work? Each kind of scenario once, in about a minute."""
    RECOVERY = "recovery"
    """How long does each fault have effects?"""
    SOAK = "soak"
    """Does everything hold for hours?"""
    GATES = "gates"
    """Do units, rates, priorities and fair shares hold while their definitions change?"""


_LEASE_DEFAULT_SECONDS: Final = 15.0
"""The default of the services."""
_LEASE_SMOKE_SECONDS: Final = 3.0


def _mix(text: object) -> object:
    return DurationMix.parse(text) if isinstance(text, str) else text


def _limit(text: object) -> object:
    return None if text == "none" else text


def _faults(text: object) -> object:
    if not isinstance(text, str):
        return text or ()
    if text.strip() == _ALL:
        return tuple(FaultKind)
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in _FAULTS]
    if unknown:
        raise ValueError(f"{unknown[0][:60]!r} is unknown; expected all, or some of {', '.join(_FAULTS)}")
    return tuple(_FAULTS[name] for name in dict.fromkeys(names))


class RunConfig(BaseModel):
    """A validated run; None: the preset decides. Field names and aliases are the options."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    preset: Preset | None
    local: bool
    seed: int
    actions: Annotated[int, Field(ge=1, le=1000)]
    limit: Annotated[Annotated[int, Field(ge=1, le=100_000)] | None, BeforeValidator(_limit)]
    executions: Annotated[int, Field(ge=1, le=EXECUTIONS_MAX)] | None
    mix: Annotated[DurationMix | None, BeforeValidator(_mix), Field(alias="duration_mix")]
    keys: Annotated[int, Field(ge=0, le=100_000)]
    submitters: Annotated[int, Field(ge=1, le=64)]
    rate: Annotated[float, Field(gt=0)] | None
    faults: Annotated[tuple[FaultKind, ...], BeforeValidator(_faults)]
    duration_seconds: Annotated[Duration, Field(ge=5.0, le=30 * 86400.0)] | None = Field(alias="duration")
    """Of a soak, or of the load with gates."""
    executors: Annotated[int, Field(ge=1, le=16)]
    workers: Annotated[int, Field(ge=1, le=64)]
    lease: Annotated[Duration, Field(ge=1.0, le=3600.0)] | None

    @property
    def lease_seconds(self) -> float:
        """The lease of the workers."""
        if self.lease is not None:
            return self.lease
        return _LEASE_SMOKE_SECONDS if self.preset is Preset.SMOKE else _LEASE_DEFAULT_SECONDS

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.faults and not self.local:
            raise ValueError(
                "--faults: only with --local, because faults kill and restart servers. On your own "
                "installation, inject faults by hand during a run without --faults; the checks are the same"
            )
        if self.preset is Preset.RECOVERY and not self.local:
            raise ValueError("--preset recovery: it kills and restarts services, so only with --local")
        if self.faults and self.preset not in (None, Preset.SOAK):
            raise ValueError(f"--faults: the preset {self.preset} has its own; leave one of the two out")
        return self

    def describe(self) -> str:
        """Return a short description for the report."""
        what = f"preset {self.preset}" if self.preset else "the default run"
        if not self.local:
            return what
        lease = format_duration(self.lease_seconds)
        return f"{what}, private servers, {self.executors} executors, {self.workers} workers, lease {lease}"


def read_config(options: Mapping[str, Any]) -> RunConfig:
    """Parse the options of `stress run`, given by the names of their parameters; raises ValueError."""
    try:
        return RunConfig.model_validate(options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        sentence = invalid_values([first])[0].sentence
        if not first["loc"]:
            raise ValueError(sentence) from None
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise ValueError(f"{option}: {str(first['input'])[:60]!r}: {sentence}") from None


def installation_at(amqp_url: str | None, api_urls: str | None, token: str | None) -> Installation:
    """Return the installation at these URLs; raises ValueError."""
    urls = tuple(url.strip().rstrip("/") for url in (api_urls or "").split(",") if url.strip())
    if not amqp_url or not urls:
        raise ValueError(
            "give --local for a private installation, or --amqp-url and --api-url of an existing one "
            "(TURNSTILE_AMQP_URL, TURNSTILE_API_URL)"
        )
    try:
        nodes = amqp_urls(amqp_url)
    except ValueError as error:
        raise ValueError(f"--amqp-url: {error}") from None
    if len(nodes) > 1:
        raise ValueError("--amqp-url: expected one URL, of one node of the cluster")
    for url in urls:
        if not is_api_url(url):
            raise ValueError(f"--api-url: {INVALID_API_URL}")
    return Installation(
        amqp_url=SecretStr(amqp_url), http_urls=urls, api_token=SecretStr(token) if token else None
    )
