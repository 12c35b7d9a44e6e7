"""The URLs of the servers: what is wrong with one, what the driver takes, and what may be shown.

In: `TURNSTILE_DATABASE_URL` as libpq takes it (one host or several: `postgresql://user:password@a,b/db`) and
`TURNSTILE_AMQP_URL` (one URL per node, separated by commas). Out: checked URLs, or ValueError with what is
expected. TLS options are checked here; the drivers apply them: asyncpg reads `sslmode`, `sslrootcert`,
`sslcert`, `sslkey`, and aiormq `cafile`, `certfile`, `keyfile`.

An error quotes no part of a URL but the path of a file: any part can be one of a password that contains
characters of URLs. Such a password is refused, since a URL that is shown would contain the rest of it.
"""

import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

if TYPE_CHECKING:
    from yarl import URL

_AMQP_EXPECTED: Final = "amqp://user:password@host:port/vhost"
_AMQP_SEVERAL: Final = "amqp://user:password@a:5672/vhost,amqp://user:password@b:5672/vhost"
_AMQP_TLS: Final = frozenset({"cafile", "certfile", "keyfile", "no_verify_ssl"})
# A comma inside a URL, as in a password, belongs to the URL.
_NEXT_URL: Final = re.compile(r"\s*,\s*(?=[a-z]+://)")

_DATABASE_EXPECTED: Final = "expected postgresql://user:password@host:port/database"
_DATABASE_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SHOWN: Final = frozenset({"host", "port", "dbname", "database", "user", "sslmode", "target_session_attrs"})
_HTTP_EXPECTED: Final = "expected a URL like http://user:password@host:port"
INVALID_API_URL: Final = "invalid URL; expected one like http://127.0.0.1:8000, without user and password"
_ENCODE: Final = (
    "if the password contains / ? # @ % [ or ], percent-encode the password, where these are "
    "%2F %3F %23 %40 %25 %5B and %5D"
)
_BEHIND_THE_HOST: Final = re.compile(r"://[^/?#]*[/?].*@|#", re.DOTALL)

_UNTRUSTED: Final = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl\.c:\d+\))?['\")]*$")
_OUT_OF_DATE: Final = re.compile("has expired|not yet valid")
_OTHER_NAME: Final = re.compile("mismatch")
_PORT_CLOSED: Final = re.compile(r"Connect call failed|Connection refused|Multiple exceptions: \[Errno 111\]")
_HOST_UNKNOWN: Final = re.compile(
    r"^\[Errno -\d+\]|Name or service not known|name resolution|No address associated"
)
_EXCERPT_MAX: Final = 200


def amqp_urls(text: str, *, heartbeat: int | None = None) -> "list[URL]":
    """Return the URL of each node, with this heartbeat in seconds, unless it has a shorter one.

    A longer one or 0 is replaced: a server that ends without a word must be noticed in time. Raises
    ValueError with what is expected.
    """
    urls = [_read_amqp_url(part) for part in _NEXT_URL.split(text.strip())]
    if len({url.path.lstrip("/") for url in urls}) > 1:
        raise ValueError(f"all nodes must be given with the same vhost, as in {_AMQP_SEVERAL}")
    if heartbeat is None:
        return urls
    return [url.update_query(heartbeat=min(heartbeat, _heartbeat(url) or heartbeat)) for url in urls]


def _heartbeat(url: "URL") -> int:
    text = url.query.get("heartbeat", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _read_amqp_url(text: str) -> "URL":
    from yarl import URL  # noqa: PLC0415  (command lines and child processes do not need it)

    if "://" not in text:
        raise ValueError(f"not a URL; expected {_AMQP_EXPECTED}")
    _check_encoded(text, f"expected {_AMQP_EXPECTED}")
    try:
        url = URL(text)
        host, port = url.host or "", url.port
        # The driver encodes the name in this way, and fails for an empty label.
        host.encode("idna")
    except ValueError:
        raise ValueError(
            f"host or port is wrong; expected {_AMQP_EXPECTED}, or for several nodes {_AMQP_SEVERAL}; "
            f"{_ENCODE}"
        ) from None
    if url.scheme not in ("amqp", "amqps") or not host or port == 0:
        raise ValueError(f"expected {_AMQP_EXPECTED}")
    if "," in host or "," in url.raw_path:
        raise ValueError(f"several nodes are several whole URLs: {_AMQP_SEVERAL}")
    if (found := _AMQP_TLS & url.query.keys()) and url.scheme != "amqps":
        raise ValueError(f"{min(found)}: requires TLS; use amqps:// and the broker's TLS port")
    if url.query.get("no_verify_ssl", "0") != "0":
        raise ValueError(
            "no_verify_ssl: it would accept any server; name the certificate authority: ?cafile=/path/ca.pem"
        )
    check_authority(url.query, "cafile")
    check_key_pair(url.query, "certfile", "keyfile")
    return url


def check_database_url(url: str) -> None:
    """Raise ValueError with what is expected, unless `url` can name a database."""
    if "://" not in url:
        raise ValueError(f"not a URL; {_DATABASE_EXPECTED}")
    _check_encoded(url, _DATABASE_EXPECTED)
    parts = _split(url, _DATABASE_EXPECTED)
    try:
        # As the driver reads it.
        values = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise ValueError(f"a parameter behind the ? has no =; {_DATABASE_EXPECTED}; {_ENCODE}") from None
    query = {name: given[-1] for name, given in values.items()}
    if _scheme(url) not in _DATABASE_SCHEMES or not (
        parts.path.strip("/") or {"dbname", "database"} & query.keys()
    ):
        raise ValueError(f"{_DATABASE_EXPECTED}; {_ENCODE}")
    for host in parts.netloc.rpartition("@")[2].split(","):
        name = host.partition(":")[0]
        try:
            # The driver encodes the name in this way, and fails for an empty label. %2F begins a socket path.
            _ = "%" in name or name.encode("idna")
        except UnicodeError:
            raise ValueError(f"a host is not a host name; {_DATABASE_EXPECTED}; {_ENCODE}") from None
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        if colon and port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f"a port is not a number up to 65535; {_DATABASE_EXPECTED}; {_ENCODE}")
    if query.get("sslmode", "prefer") not in _SSL_MODES:
        raise ValueError(f"sslmode: expected one of {', '.join(_SSL_MODES)}")
    check_authority(query, "sslrootcert")
    check_key_pair(query, "sslcert", "sslkey")


def check_http_url(url: str) -> None:
    """Raise ValueError with what is expected, unless `url` names a server; it may have a password."""
    _check_encoded(url, _HTTP_EXPECTED)
    parts = _split(url, _HTTP_EXPECTED)
    try:
        is_valid = bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        is_valid = False
    if parts.scheme not in ("http", "https") or not is_valid:
        raise ValueError(f"{_HTTP_EXPECTED}; {_ENCODE}")


def _check_encoded(url: str, expected: str) -> None:
    """Raise ValueError for an @ or # behind the host: what is around it belongs to the password."""
    if _BEHIND_THE_HOST.search(url) is not None:
        raise ValueError(f"there is an @ or # behind the host; {expected}; {_ENCODE}")


def _split(url: str, expected: str) -> SplitResult:
    """Return the parts; raises ValueError, where the library would quote the password."""
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError(f"host or port is wrong; {expected}; {_ENCODE}") from None


def driver_url(url: str) -> str:
    """Return `url` without a driver name in its scheme, as in `postgresql+asyncpg`."""
    return f"{_scheme(url)}://{url.partition('://')[2]}"


def host_urls(url: str) -> list[str]:
    """Return one URL for each host of `url`, as the driver takes them.

    With several hosts only the primary is accepted, unless `target_session_attrs` is set: we write.
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
    """Return `url` without its password and with what is known of its query, for logs and output."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    query = "&".join(part for part in parts.query.split("&") if part.partition("=")[0] in _SHOWN)
    return urlunsplit(parts._replace(netloc=f"{user}{colon and ':***'}{at}{hosts}", query=query))


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition("+")[0]


def check_authority(query: Mapping[str, str], name: str) -> None:
    """Raise ValueError unless the file that the parameter `name` names, if any, holds certificates."""
    _check_readable(query, name)
    if (path := query.get(name)) is not None:
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            raise ValueError(f"{name}: {path}: contains no PEM certificate") from None


def check_key_pair(query: Mapping[str, str], certificate: str, key: str) -> None:
    """Raise ValueError unless these two parameters are both absent, or name a certificate and its key."""
    _check_readable(query, certificate, key)
    if key in query and certificate not in query:
        raise ValueError(f"{certificate}: required with {key}")
    if certificate in query:
        try:
            # With no password given, OpenSSL would prompt for it on the terminal.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(query[certificate], query.get(key), password=lambda: b"")
        except ssl.SSLError:
            raise ValueError(
                f"{certificate}, {key}: not a certificate and its key, in PEM and without a password"
            ) from None


def _check_readable(query: Mapping[str, str], *names: str) -> None:
    for name in names:
        if (path := query.get(name)) is not None:
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"{name}: {path}: {error.strerror}") from None


def with_tls_hint(reason: str, *, authority: str) -> str:
    """Return the error of a connection, with a remedy where a certificate was not accepted.

    `authority` is the setting that names the certificate authority.
    """
    untrusted = _UNTRUSTED.search(reason)
    if untrusted is None:
        return reason
    why = untrusted[1][:_EXCERPT_MAX].rstrip(".")
    if _OUT_OF_DATE.search(why) is not None:
        return f"the server's certificate is refused ({why}): renew it, or correct the clock of this machine"
    if _OTHER_NAME.search(why) is not None:
        return (
            f"the server's certificate is refused ({why}): connect to a name that is in the certificate, "
            "or issue it for this name"
        )
    return f"the server's certificate is not trusted ({why}); name the authority that signed it: {authority}"


def network_remedy(reason: str, *, server: str, setting: str) -> str | None:
    """Return what is wrong and the remedy where a host is unknown or its port is closed, else None.

    `server` is the kind of server, `setting` the name of the setting with its URL.
    """
    if _PORT_CLOSED.search(reason) is not None:
        return (
            f"{reason}: no server accepts connections there; start {server}, whose log says why it ended, "
            f"or correct {setting}"
        )
    if _HOST_UNKNOWN.search(reason) is not None:
        return f"the name of the host cannot be resolved ({reason}): correct {setting}"
    return None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its address or as `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_api_url(url: str) -> bool:
    """Return whether a URL can be that of the HTTP API: of a host, without user, query and fragment."""
    try:
        parts = urlsplit(url)
        has_host = bool((parts.hostname or "").encode("idna"))
        plain = "@" not in url and not (parts.query or parts.fragment)
        return parts.scheme in ("http", "https") and has_host and plain and parts.port != 0
    except ValueError:
        return False
