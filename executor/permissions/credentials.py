"""The credentials of each service: one file per service, in a folder, with only its own credentials.

In: the two servers' addresses, and passwords from the environment, from the files of an earlier run, or new
ones. Out: `executor.env`, `worker.env` and `client.env`, readable by their owner only, in the form that
`docker --env-file`, systemd's `EnvironmentFile=` and a shell take. Servers get a hash of each password only,
so no server log shows a password.
"""

import hashlib
import hmac
import os
import secrets
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from turnstile.common.urls import amqp_urls

PASSWORD: Final = "TURNSTILE_{service}_PASSWORD"
_DATABASE: Final = "TURNSTILE_DATABASE_URL"
_BROKER: Final = "TURNSTILE_AMQP_URL"
_PASSWORD_LENGTH_MIN: Final = 12
_SCRAM_ITERATIONS: Final = 4096
_GENERATED_BYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One service's account, the same on both servers."""

    service: str
    name: str
    password: str


def choose_login(service: str, name: str, folder: Path, environment: Mapping[str, str]) -> Login:
    """Return an account with the given password, else that of an earlier run, else a new one.

    Raises ValueError for an invalid given password.
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
    """Write the environment file of a service; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [] if login.service == "client" else [f"{_DATABASE}={_url_of(login, database_url)}"]
    nodes = [_url_of(login, str(url)) for url in amqp_urls(amqp_url)]
    lines.append(f"{_BROKER}={','.join(nodes)}")
    file = _file(folder, login.service)
    write_privately(file, "\n".join([*lines, ""]))
    return file


def write_privately(file: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    # The mode is set before the content is written.
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def new_password() -> str:
    """Return a password that needs no quoting in a URL."""
    return secrets.token_urlsafe(_GENERATED_BYTES)


def scram_verifier(password: str) -> str:
    """Return the verifier that PostgreSQL stores for SCRAM-SHA-256 (RFC 5803); the password is ASCII."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, _SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    parts = [b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


def broker_hash(password: str) -> str:
    """Return the hash that RabbitMQ stores: four bytes of salt, and the SHA-256 of salt and password."""
    salt = secrets.token_bytes(4)
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _file(folder: Path, service: str) -> Path:
    return folder / f"{service}.env"


def _earlier(file: Path, name: str) -> str | None:
    """Return the account's password from an earlier run."""
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
