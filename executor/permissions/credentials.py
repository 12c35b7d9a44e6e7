"""The credentials of each service: one file per service, in a folder, with only its own credentials.

In: the two servers' addresses, and passwords from the environment, from the files of an earlier run, or new
ones. Out: `executor.env`, `worker.env` and `client.env`, readable by their owner only, in the form that
`docker --env-file`, systemd's `EnvironmentFile=` and a shell take. A changed file is written as
`<service>.env.pending` before its account changes on a server, and renamed after: an interrupted run loses no
password, and the next one continues with it. Servers get a hash of each password only, so no server log shows
a password.
"""

import hashlib
import hmac
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from turnstile.common.urls import amqp_urls
from turnstile.executor.permissions.plan import Check, Installation, Source, account_name

PASSWORD: Final = "TURNSTILE_{service}_PASSWORD"
_DATABASE: Final = "TURNSTILE_DATABASE_URL"
_BROKER: Final = "TURNSTILE_AMQP_URL"
_PASSWORD_LENGTH_MIN: Final = 12
_SCRAM_ITERATIONS: Final = 4096
_GENERATED_BYTES: Final = 24
_BROKER_SALT_BYTES: Final = 4
_BROKER_DIGESTS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """One service's account; the executor's has the same name and password on both servers."""

    service: str
    name: str
    password: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The account in a file of credentials, and the installation that it is for."""

    name: str
    password: str
    vhost: str
    database: str | None
    """None in the files of workers and clients, which have no access to the database."""

    def is_for(self, installation: Installation) -> bool:
        """Return whether the file belongs to this installation."""
        return self.vhost == installation.vhost and self.database in (None, installation.database)


def installation_of(database_url: str, amqp_url: str) -> Installation:
    """Return the installation that the two URLs name."""
    # As the client library reads it: the path without its first slash; empty is the default vhost.
    vhost = amqp_urls(amqp_url)[0].path[1:] or "/"
    return Installation(database=_database_of(database_url), vhost=vhost)


def read_stored(folder: Path, service: str, *, pending: bool = False) -> Stored | None:
    """Return the account in a file of an earlier run; with `pending`, of one that was interrupted."""
    file = _file(folder, service)
    try:
        lines = (_pending(file) if pending else file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    urls = {variable: url for variable, _, url in (line.partition("=") for line in lines)}
    # The nodes of a cluster have the same account and vhost.
    parts = urlsplit(urls.get(_BROKER, "").partition(",amqp")[0])
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if not password:
        return None
    return Stored(
        name=unquote(user),
        password=unquote(password),
        vhost=unquote(parts.path[1:]) or "/",
        database=_database_of(urls[_DATABASE]) if _DATABASE in urls else None,
    )


def choose_login(
    service: str, prefix: str, folder: Path, environment: Mapping[str, str], *, rotate: bool = False
) -> Login:
    """Return an account with the given password, else that of an earlier run, else a new one.

    `rotate`: not that of an earlier run. Raises ValueError for an invalid given password.
    """
    name = account_name(prefix, service)
    given = _given(service, environment)
    if given is not None:
        return Login(service=service, name=name, password=given, source=Source.GIVEN)
    for source in () if rotate else (Source.INTERRUPTED, Source.STORED):
        stored = read_stored(folder, service, pending=source is Source.INTERRUPTED)
        if stored is not None and stored.name == name:
            return Login(service=service, name=name, password=stored.password, source=source)
    return Login(service=service, name=name, password=new_password(), source=Source.NEW)


def _given(service: str, environment: Mapping[str, str]) -> str | None:
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
        return None
    if not (password.isascii() and password.isprintable()) or len(password) < _PASSWORD_LENGTH_MIN:
        raise ValueError(f"{variable}: expected at least {_PASSWORD_LENGTH_MIN} printable ASCII characters")
    return password


def write_pending(login: Login, folder: Path, *, database_url: str, amqp_url: str) -> None:
    """Write the environment file of a service, if it changes, as a pending file; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f"{_DATABASE}={url_of(login, database_url)}"] if login.service == "executor" else []
    nodes = [url_of(login, str(url)) for url in amqp_urls(amqp_url)]
    lines.append(f"{_BROKER}={','.join(nodes)}")
    text, file = "\n".join([*lines, ""]), _file(folder, login.service)
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        _pending(file).unlink(missing_ok=True)
    else:
        write_privately(_pending(file), text)


def complete_files(folder: Path, services: Iterable[str]) -> list[Path]:
    """Let each pending file replace the file of its service; return all files. Raises OSError."""
    files = [_file(folder, service) for service in services]
    for file in files:
        if _pending(file).exists():
            _pending(file).replace(file)
    return files


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
    salt = secrets.token_bytes(_BROKER_SALT_BYTES)
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def check_broker_hash(password: str, stored: str, algorithm: str) -> Check:
    """Compare a password with the hash that RabbitMQ stores."""
    if not stored:
        return "none"
    try:
        digest, content = _BROKER_DIGESTS[algorithm], b64decode(stored, validate=True)
    except (KeyError, ValueError):
        return "unknown"
    salt, found = content[:_BROKER_SALT_BYTES], content[_BROKER_SALT_BYTES:]
    expected = hashlib.new(digest, salt + password.encode()).digest()
    return "same" if hmac.compare_digest(found, expected) else "other"


def _file(folder: Path, service: str) -> Path:
    return folder / f"{service}.env"


def _pending(file: Path) -> Path:
    return file.with_name(f"{file.name}.pending")


def _database_of(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    named = query.get("dbname") or query.get("database") or [""]
    return unquote(parts.path[1:]) or named[-1]


def url_of(login: Login, url: str) -> str:
    """Return the URL with this account."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    account = f"{quote(login.name, safe='')}:{quote(login.password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{account}@{hosts}"))
