"""The credentials of each service: one file for each, in a folder, with nothing of the others in it.

In: the two servers' addresses, and passwords from the environment, from the files of an earlier run, or new
ones. Out: `executor.env`, `worker.env` and `client.env`, readable by their owner alone, in the form that
`docker --env-file`, systemd's `EnvironmentFile=` and a shell take.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from turnstile.common.amqp_url import amqp_urls
from turnstile.executor.permissions.passwords import new_password

PASSWORD: Final = "TURNSTILE_{service}_PASSWORD"
_DATABASE: Final = "TURNSTILE_DATABASE_URL"
_BROKER: Final = "TURNSTILE_AMQP_URL"
_PASSWORD_LENGTH_MIN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One service's account, the same on both servers."""

    service: str
    name: str
    password: str


def choose_login(service: str, name: str, folder: Path, environment: Mapping[str, str]) -> Login:
    """Return its account: given, else as it was, else with a new password.

    Raises ValueError for a password that was given and is none.
    """
    variable = PASSWORD.format(service=service.upper())
    password = environment.get(variable, "")
    file = environment.get(f"{variable}_FILE", "")
    if not password and file:
        variable = f"{variable}_FILE"
        try:
            password = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{variable}: {file}: {getattr(error, 'strerror', 'not text in UTF-8')}"
            ) from None
    if not password and not file:
        password = _earlier(_file(folder, service), name) or new_password()
    if not (password.isascii() and password.isprintable()) or len(password) < _PASSWORD_LENGTH_MIN:
        raise ValueError(f"{variable}: expected at least {_PASSWORD_LENGTH_MIN} printable ASCII characters")
    return Login(service=service, name=name, password=password)


def write_credentials(login: Login, folder: Path, *, database_url: str, amqp_url: str) -> Path:
    """Write what the service is to be started with; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [] if login.service == "client" else [f"{_DATABASE}={_url_of(login, database_url)}"]
    nodes = [_url_of(login, str(url)) for url in amqp_urls(amqp_url)]
    lines.append(f"{_BROKER}={','.join(nodes)}")
    file = _file(folder, login.service)
    write_privately(file, "\n".join([*lines, ""]))
    return file


def write_privately(file: Path, text: str) -> None:
    """Write a file for its owner alone; who reads it meanwhile finds the old one or the new one."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    # The mode is there before the content.
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def _file(folder: Path, service: str) -> Path:
    return folder / f"{service}.env"


def _earlier(file: Path, name: str) -> str | None:
    """Return the password that an earlier run gave this account."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        variable, _, url = line.partition("=")
        account, _, _ = urlsplit(url).netloc.rpartition("@")
        user, _, password = account.partition(":")
        if variable == _BROKER and unquote(user) == name and password:
            return unquote(password)
    return None


def _url_of(login: Login, url: str) -> str:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    account = f"{quote(login.name, safe='')}:{quote(login.password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{account}@{hosts}"))
