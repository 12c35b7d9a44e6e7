"""Reads the options of `stress run`: what people type, into what is asked.

In: text. Out: `Asked`, `Installation`, or ValueError that names the option, what was expected and an example.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from turnstile.common.amqp_url import amqp_urls
from turnstile.common.domain.durations import parse_duration
from turnstile.stress.asked import Asked, Preset
from turnstile.stress.installation import Installation
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import FaultKind

_ALL: Final = "all"
_LEASE_DEFAULT_SECONDS: Final = 15.0
"""That of the services."""
_LEASE_SECONDS: Final[dict[Preset | None, float]] = {Preset.SMOKE: 3.0}
"""Shorter where the run is to be over soon."""
_FAULTS: Final = {kind.value.replace(" ", "-"): kind for kind in FaultKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Options as they were typed."""

    local: bool
    preset: str | None
    actions: int
    limit: str
    executions: int | None
    duration_mix: str | None
    keys: int
    submitters: int
    rate: float | None
    faults: str | None
    depths: str | None
    key_counts: str | None
    duration: str
    seed: int
    executors: int
    workers: int
    lease: str | None


def read(given: Given) -> Asked:
    """Return what is asked; raises ValueError."""
    preset = _preset(given.preset)
    return Asked(
        preset=preset,
        local=given.local,
        seed=given.seed,
        actions=given.actions,
        limit=_limit(given.limit),
        executions=given.executions,
        mix=None if given.duration_mix is None else _mix(given.duration_mix),
        keys=given.keys,
        submitters=given.submitters,
        rate=given.rate,
        faults=_faults(given.faults),
        depths=_counts("--depths", given.depths),
        key_counts=_counts("--key-counts", given.key_counts),
        duration_seconds=_duration("--duration", given.duration),
        executors=given.executors,
        workers=given.workers,
        lease_seconds=_LEASE_SECONDS.get(preset, _LEASE_DEFAULT_SECONDS)
        if given.lease is None
        else _duration("--lease", given.lease),
    ).checked()


def installation(amqp_url: str | None, api_urls: str | None, token: str | None) -> Installation:
    """Return the installation that these address; raises ValueError."""
    urls = tuple(url.strip().rstrip("/") for url in (api_urls or "").split(",") if url.strip())
    if not amqp_url or not urls:
        raise ValueError(
            "give --local for a private installation, or --amqp-url and --api-url of yours "
            "(TURNSTILE_AMQP_URL, TURNSTILE_API_URL)"
        )
    _check_broker(amqp_url)
    for url in urls:
        if "@" in url:
            raise ValueError("--api-url: expected one like http://127.0.0.1:8000, without user and password")
        if not _is_http(url):
            raise ValueError(f"--api-url: {url[:100]!r} is not one like http://127.0.0.1:8000")
    return Installation(
        amqp_url=SecretStr(amqp_url), http_urls=urls, api_token=SecretStr(token) if token else None
    )


def _check_broker(url: str) -> None:
    try:
        nodes = amqp_urls(url)
    except ValueError as error:
        raise ValueError(f"--amqp-url: {error}") from None
    if len(nodes) > 1:
        raise ValueError("--amqp-url: one node of the cluster will do; expected one URL")


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
        raise ValueError(f"--preset: {name[:60]!r} is none; expected one of {', '.join(Preset)}") from None


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"--limit: {text[:60]!r} is not a limit; expected a number from 1 on, or none"
        ) from None


def _mix(text: str) -> DurationMix:
    try:
        return DurationMix.parse(text)
    except ValueError as error:
        raise ValueError(f"--duration-mix: {error}") from None


def _faults(text: str | None) -> tuple[FaultKind, ...]:
    if text is None:
        return ()
    if text.strip() == _ALL:
        return tuple(FaultKind)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in _FAULTS]
    if unknown or not names:
        what = f"{unknown[0][:60]!r} is none" if unknown else "empty"
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


def _duration(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
