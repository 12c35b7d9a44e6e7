"""TLS on the links to the servers: what is wrong with it, in plain words, before and after the first try.

In: files that a URL names, or what a library said. Out: ValueError, or a sentence that names the remedy. The
libraries do the rest: asyncpg reads `sslmode`, `sslrootcert`, `sslcert`, `sslkey` of the database's URL,
aiormq `cafile`, `certfile`, `keyfile` of the broker's.
"""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_UNTRUSTED: Final = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl\.c:\d+\))?['\")]*$")
_EXCERPT_MAX: Final = 200


def check_files(query: Mapping[str, str], *names: str) -> None:
    """Raise ValueError unless the files that these parts of a URL's query name can be read."""
    for name in names:
        if (path := query.get(name)) is not None:
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"{name}: {path}: {error.strerror}") from None


def check_authority(query: Mapping[str, str], name: str) -> None:
    """Raise ValueError unless the file that this part of a URL's query names holds certificates."""
    check_files(query, name)
    if (path := query.get(name)) is not None:
        try:
            ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            raise ValueError(f"{name}: {path}: holds no certificate in PEM") from None


def check_key_pair(query: Mapping[str, str], certificate: str, key: str) -> None:
    """Raise ValueError unless these two parts are both absent, or name a certificate and its key."""
    check_files(query, certificate, key)
    if key in query and certificate not in query:
        raise ValueError(f"{certificate}: it takes the certificate of {key}")
    if certificate in query:
        try:
            # A key that takes a password would ask for it on the terminal.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(query[certificate], query.get(key), password=lambda: b"")
        except ssl.SSLError:
            raise ValueError(
                f"{certificate}, {key}: not a certificate and its key, in PEM and without a password"
            ) from None


def explained(reason: str, *, authority: str) -> str:
    """Return what a library said of a connection, with a remedy where a certificate was not trusted.

    `authority` is where the one that signed it is named.
    """
    untrusted = _UNTRUSTED.search(reason)
    if untrusted is None:
        return reason
    return (
        f"the server's certificate is not trusted ({untrusted[1][:_EXCERPT_MAX]}); name the authority that "
        f"signed it: {authority}"
    )
