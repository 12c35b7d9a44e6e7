"""The database's URL as libpq takes it: one host or several, `postgresql://user:password@a:5432,b:5432/db`.

In: what somebody wrote. Out: a complaint in plain words, what the driver takes, or what may be shown. The
driver itself reads the rest (`target_session_attrs`, `sslmode`, ...). Next: `database_hosts`.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from turnstile.common.tls import check_authority, check_key_pair

EXPECTED: Final = "expected postgresql://user:password@host:port/database"
_SECRETS: Final = ("password=", "sslpassword=")
_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def check_database_url(url: str) -> None:
    """Raise ValueError with what is expected instead, unless `url` can name a database."""
    if "://" not in url:
        raise ValueError(f"not a URL; {EXPECTED}")
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if _scheme(url) not in _SCHEMES or not (parts.path.strip("/") or {"dbname", "database"} & query.keys()):
        raise ValueError(EXPECTED)
    _check_names(parts.netloc)
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f"port {port!r}: expected a number up to 65535, as in host:5432")
    _check_tls({name: values[-1] for name, values in query.items()})


def _check_names(netloc: str) -> None:
    for host in netloc.rpartition("@")[2].split(","):
        name = host.partition(":")[0]
        try:
            # As the driver will have it, which stumbles over an empty label. A folder of sockets is no name.
            _ = "%" in name or name.encode("idna")
        except UnicodeError:
            raise ValueError(f"{name[:60]!r} is no name of a host; {EXPECTED}") from None


def _check_tls(query: Mapping[str, str]) -> None:
    if (mode := query.get("sslmode", "prefer")) not in _SSL_MODES:
        raise ValueError(f"sslmode {mode[:40]!r}: expected one of {', '.join(_SSL_MODES)}")
    check_authority(query, "sslrootcert")
    check_key_pair(query, "sslcert", "sslkey")


def driver_url(url: str) -> str:
    """Return `url` without the name of a driver that other tools want in its scheme."""
    return f"{_scheme(url)}://{url.partition('://')[2]}"


def host_urls(url: str) -> list[str]:
    """Return one URL for each host of `url`, as the driver takes them.

    Of several only the primary will do, unless `target_session_attrs` says otherwise: we write.
    """
    parts = urlsplit(driver_url(url))
    account, at, hosts = parts.netloc.rpartition("@")
    several = hosts.split(",")
    if len(several) == 1:
        return [driver_url(url)]
    query = parts.query
    if "target_session_attrs" not in parse_qs(query):
        query = "&".join(filter(None, [query, "target_session_attrs=primary"]))
    return [urlunsplit(parts._replace(netloc=f"{account}{at}{host}", query=query)) for host in several]


def shown_url(url: str) -> str:
    """Return `url` without its password, for logs and people."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    query = "&".join(part for part in parts.query.split("&") if not part.startswith(_SECRETS))
    return urlunsplit(parts._replace(netloc=f"{user}{colon and ':***'}{at}{hosts}", query=query))


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition("+")[0]
