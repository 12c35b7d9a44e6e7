"""The configuration of a run: the options of `stress run`, parsed and validated before anything starts.

In: text of the command line. Out: a `RunConfig` and an `Installation`, or ValueError that names the option,
what was expected and an example. `presets` turns a `RunConfig` into scenarios.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import isfinite
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from turnstile.common.domain.durations import format_duration, parse_duration
from turnstile.common.urls import amqp_urls
from turnstile.stress.installation import Installation
from turnstile.stress.scenario import DurationMix, FaultKind

Value = TypeVar("Value")

EXECUTIONS_MAX: Final = 10_000_000
_ALL: Final = "all"
_FAULTS: Final = {kind.value.replace(" ", "-"): kind for kind in FaultKind}


class Preset(StrEnum):
    """Loads that answer one question each; the value is the name on the command line."""

    SMOKE = "smoke"
    """Does it work? Each kind of scenario once, in under a minute."""
    LIMITS = "limits"
    """Do limits hold: one, few, many, none, and changed under load?"""
    FIFO = "fifo"
    """Does the order hold, with many submitters, keys and killed executors?"""
    KEYS = "keys"
    """What do many queues cost?"""
    DEPTH = "depth"
    """What does a long queue cost?"""
    RECOVERY = "recovery"
    """How long does each fault have effects?"""
    SOAK = "soak"
    """Does everything hold for hours?"""


_LEASE_DEFAULT_SECONDS: Final = 15.0
"""The default of the services."""
_LEASE_SECONDS: Final[dict[Preset | None, float]] = {Preset.SMOKE: 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A validated run; None: the preset decides."""

    preset: Preset | None
    local: bool
    seed: int
    actions: int
    limit: int | None
    executions: int | None
    mix: DurationMix | None
    keys: int
    submitters: int
    rate: float | None
    faults: tuple[FaultKind, ...]
    depths: tuple[int, ...] | None
    key_counts: tuple[int, ...] | None
    duration_seconds: float
    """Of a soak."""
    executors: int
    workers: int
    lease_seconds: float

    def describe(self) -> str:
        """Return a short description for the report."""
        what = f"preset {self.preset}" if self.preset else "the default run"
        if not self.local:
            return what
        lease = format_duration(self.lease_seconds)
        return f"{what}, private servers, {self.executors} executors, {self.workers} workers, lease {lease}"


def read_config(options: Mapping[str, Any]) -> RunConfig:
    """Parse the options of `stress run`, given by the names of their parameters; raises ValueError."""
    preset = _preset(options["preset"])
    mix, lease = options["duration_mix"], options["lease"]
    parsed: dict[str, Any] = {
        "preset": preset,
        "limit": _limit(options["limit"]),
        "mix": None if mix is None else _parsed("--duration-mix", DurationMix.parse, mix),
        "faults": _faults(options["faults"]),
        "depths": _counts("--depths", options["depths"]),
        "key_counts": _counts("--key-counts", options["key_counts"]),
        "duration_seconds": _parsed("--duration", parse_duration, options["duration"]),
        "lease_seconds": _LEASE_SECONDS.get(preset, _LEASE_DEFAULT_SECONDS)
        if lease is None
        else _parsed("--lease", parse_duration, lease),
    }
    unparsed = {field.name: options[field.name] for field in fields(RunConfig) if field.name not in parsed}
    config = RunConfig(**unparsed, **parsed)
    _validate(config)
    return config


def installation_at(amqp_url: str | None, api_urls: str | None, token: str | None) -> Installation:
    """Return the installation at these URLs; raises ValueError."""
    urls = tuple(url.strip().rstrip("/") for url in (api_urls or "").split(",") if url.strip())
    if not amqp_url or not urls:
        raise ValueError(
            "give --local for a private installation, or --amqp-url and --api-url of an existing one "
            "(TURNSTILE_AMQP_URL, TURNSTILE_API_URL)"
        )
    if len(_parsed("--amqp-url", amqp_urls, amqp_url)) > 1:
        raise ValueError("--amqp-url: expected one URL, of one node of the cluster")
    for url in urls:
        if "@" in url:
            raise ValueError("--api-url: expected one like http://127.0.0.1:8000, without user and password")
        if not _is_http(url):
            raise ValueError(f"--api-url: {url[:100]!r} is not one like http://127.0.0.1:8000")
    return Installation(
        amqp_url=SecretStr(amqp_url), http_urls=urls, api_token=SecretStr(token) if token else None
    )


def _validate(config: RunConfig) -> None:
    bounds = {
        "--actions": (config.actions, 1, 1000),
        "--limit": (1 if config.limit is None else config.limit, 1, 100_000),
        "--executions": (1 if config.executions is None else config.executions, 1, EXECUTIONS_MAX),
        "--keys": (config.keys, 0, 100_000),
        "--submitters": (config.submitters, 1, 64),
        "--executors": (config.executors, 1, 16),
        "--workers": (config.workers, 1, 64),
        "--lease": (config.lease_seconds, 1.0, 3600.0),
        "--duration": (config.duration_seconds, 10.0, 30 * 86400.0),
    }
    for option, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise ValueError(f"{option}: {value:g} is not between {least:g} and {most:g}")
    if config.rate is not None and not (isfinite(config.rate) and config.rate > 0):
        raise ValueError(
            f"--rate: {config.rate:g} requests per second; expected a number above 0, or leave it out"
        )
    for option, counts in (("--depths", config.depths), ("--key-counts", config.key_counts)):
        if counts is not None and not (counts and all(1 <= count <= EXECUTIONS_MAX for count in counts)):
            raise ValueError(f"{option}: expected numbers from 1 on, by commas, like 100,1000,10000")
    if config.faults and not config.local:
        raise ValueError(
            "--faults: only with --local, because faults kill and restart servers. On your own installation, "
            "inject faults by hand during a run without --faults; the checks are the same"
        )
    if config.preset is Preset.RECOVERY and not config.local:
        raise ValueError("--preset recovery: it kills and restarts services, so only with --local")
    if config.faults and config.preset not in (None, Preset.SOAK):
        raise ValueError(f"--faults: the preset {config.preset} has its own; leave one of the two out")


def _parsed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return False


def _preset(name: str | None) -> Preset | None:
    if name is None:
        return None
    try:
        return Preset(name)
    except ValueError:
        raise ValueError(f"--preset: {name[:60]!r} is unknown; expected one of {', '.join(Preset)}") from None


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"--limit: {text[:60]!r} is not a limit; expected a number from 1 on, or none"
        ) from None


def _faults(text: str | None) -> tuple[FaultKind, ...]:
    if text is None:
        return ()
    if text.strip() == _ALL:
        return tuple(FaultKind)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in _FAULTS]
    if unknown or not names:
        what = f"{unknown[0][:60]!r} is unknown" if unknown else "empty"
        raise ValueError(f"--faults: {what}; expected all, or some of {', '.join(_FAULTS)}")
    return tuple(_FAULTS[name] for name in dict.fromkeys(names))


def _counts(option: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{option}: {text[:60]!r}; expected numbers by commas, like 100,1000,10000"
        ) from None
