"""The plan of `executor setup-permissions`: which accounts it creates, keeps, changes or refuses, and why.

In: an installation, its accounts as both servers have them, and where their passwords come from. Out: one
step for each account on each server. Pure: reads and changes nothing. An account that another installation
uses is never changed unless the operator asks for it (`rotate`).
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from turnstile.executor.permissions.rights import BROKER

PREFIX_BYTES_MAX: Final = 63 - len("-executor")
"""PostgreSQL cuts a longer name of a role."""

Server: TypeAlias = Literal["database", "broker"]
Check: TypeAlias = Literal["same", "other", "none", "unknown"]
"""An account's password: the one at hand, another one, none at all, or not to be found out."""

_UNIT: Final = {"database": "database", "broker": "vhost"}
_TAKEN: Final = (
    "choose other names with --prefix {prefix}, or take the accounts over with --rotate: then no other "
    "installation can connect with them any more"
)
_LOST: Final = (
    "name the folder of the earlier run with --credentials, or set new passwords with --rotate, and restart "
    "the processes of this installation with them"
)


class SetupRefused(Exception):
    """A server cannot be set up; the message says what to do."""


class Source(StrEnum):
    """Where the password of an account comes from."""

    GIVEN = "given"
    """From the environment."""
    INTERRUPTED = "interrupted"
    """From a file that an earlier run wrote before it was interrupted."""
    STORED = "stored"
    """From the credentials of an earlier run."""
    NEW = "new"


class AccountChange(StrEnum):
    """What happens to an account."""

    CREATE = "create"
    KEEP = "keep"
    ROTATE = "rotate"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One database and one vhost."""

    database: str
    vhost: str

    def unit_on(self, server: Server) -> str:
        """Return the database or the vhost."""
        return self.database if server == "database" else self.vhost


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """An account that exists on a server."""

    users: frozenset[str]
    """The databases or vhosts that use it."""
    password: Check = "unknown"
    is_outdated: bool = False
    """Its rights differ from those of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStep:
    """What happens to one account on one server, and why."""

    server: Server
    service: str
    name: str
    change: AccountChange
    reason: str = ""
    remedy: str = ""
    """Of a refusal: what the operator can do."""
    is_shared: bool = False
    """Another installation uses the account and keeps it."""

    def __str__(self) -> str:
        """Return the line that the command prints."""
        return f"  {self.change:8}{self.name}{self.reason and f': {self.reason}'}"


def account_name(prefix: str, service: str) -> str:
    """Return the name of a service's account, on both servers."""
    return f"{prefix}-{service}"


def default_prefix(installation: Installation) -> str:
    """Return the prefix of this installation's account names: `turnstile`, the database, the vhost.

    A word that would repeat an earlier one is left out, so the database and the vhost `turnstile` give
    `turnstile`. Characters other than letters, digits, `_`, `.` and `-` become `-`.
    """
    parts = ("turnstile", installation.database, installation.vhost)
    words = dict.fromkeys(re.sub(r"[^A-Za-z0-9_.-]+", "-", part).strip("-.") for part in parts)
    return "-".join(filter(None, words))[:PREFIX_BYTES_MAX].rstrip("-.")


def plan_account(
    server: Server,
    service: str,
    name: str,
    *,
    installation: Installation,
    present: Present | None,
    source: Source,
    rotate: bool = False,
) -> AccountStep:
    """Return what happens to one account on one server."""
    own, unit = installation.unit_on(server), _UNIT[server]
    others = _named(unit, present.users - {own}) if present else ""
    remedy, notes = "", []
    if present is None:
        change, reason = AccountChange.CREATE, ""
    elif others:
        change, reason = _decide_shared(present, source, others, is_own=own in present.users, rotate=rotate)
        remedy = _TAKEN
    else:
        change, reason = _decide_own(present, source, service, unit, rotate=rotate)
        remedy = _LOST if present.users or present.password == "same" else _TAKEN
    if present and change is AccountChange.KEEP:
        notes = ["renews its rights"] if present.is_outdated else []
        notes += ["its password could not be checked"] if present.password == "unknown" else []
    suggested = default_prefix(installation)
    prefix = "NAME" if name == account_name(suggested, service) else suggested
    return AccountStep(
        server=server,
        service=service,
        name=name,
        change=change,
        reason="; ".join(filter(None, [reason, *notes])),
        remedy=remedy.format(prefix=prefix) if change is AccountChange.REFUSE else "",
        is_shared=change is AccountChange.KEEP and bool(others),
    )


_Decision: TypeAlias = tuple[AccountChange, str]


def _decide_shared(present: Present, source: Source, others: str, *, is_own: bool, rotate: bool) -> _Decision:
    """Decide about an account that another installation uses, alone or beside this one."""
    if rotate:
        return AccountChange.ROTATE, f"takes it over from {others}"
    if not is_own:
        return AccountChange.REFUSE, f"used by {others}"
    if source is Source.NEW or present.password == "other":
        return AccountChange.REFUSE, f"also used by {others}, and its password is not known here"
    return AccountChange.KEEP, f"also used by {others}"


def _decide_own(present: Present, source: Source, service: str, unit: str, *, rotate: bool) -> _Decision:
    """Decide about an account that no other installation uses."""
    if present.password == "none":
        return AccountChange.CREATE, "it has no password yet"
    has_given = bool(present.users) and source is Source.GIVEN and present.password == "same"
    if rotate and not has_given:
        return AccountChange.ROTATE, "sets a new password"
    if not present.users and present.password != "same":
        return AccountChange.REFUSE, f"it exists, and no {unit} is known to use it"
    if source is Source.NEW:
        return AccountChange.REFUSE, "it exists, and its password is not known here"
    if present.password != "other":
        return AccountChange.KEEP, ""
    match source:
        case Source.GIVEN:
            return AccountChange.ROTATE, f"TURNSTILE_{service.upper()}_PASSWORD is another password"
        case Source.INTERRUPTED:
            return AccountChange.ROTATE, "completes an earlier run, which was interrupted"
        case Source.STORED:
            return AccountChange.REFUSE, "its password is not the one in the credentials folder"


def remedies(steps: Iterable[AccountStep]) -> str:
    """Return what the operator can do about the refusals."""
    return "; ".join(dict.fromkeys(step.remedy for step in steps if step.remedy))


def to_restart(steps: Iterable[AccountStep]) -> list[str]:
    """Return the services whose processes need the new passwords, in order."""
    rotated = {step.service for step in steps if step.change is AccountChange.ROTATE}
    return [service for service in BROKER if service in rotated]


def _named(unit: str, names: Collection[str]) -> str:
    quoted = ", ".join(repr(name) for name in sorted(names))
    return f"the {unit}{'s' if len(names) > 1 else ''} {quoted}" if names else ""
