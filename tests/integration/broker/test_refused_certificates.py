"""TLS that fails: what is wrong is named with its remedy, on either side of the connection."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.integration.broker.test_refused_connections import broker_error

_YESTERDAY = datetime.now(UTC) - timedelta(days=1)
_EXPIRED: dict[str, Any] = {"not_before": _YESTERDAY - timedelta(days=1), "not_after": _YESTERDAY}
_NO_CERTIFICATE = (
    "if it requires a client certificate, name one with certfile and keyfile in TURNSTILE_AMQP_URL"
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextmanager
def tls_server(authority: trustme.CA, name: str = "127.0.0.1", **validity: Any) -> Iterator[str]:
    """A server that requires a certificate of this authority; yields its AMQP URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # A client of TLS 1.3 has sent more before it learns that it is refused, which can replace the reason.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert(name, **validity).configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, context))
        thread.start()
        try:
            yield f"amqps://u:p@127.0.0.1:{listener.getsockname()[1]}/v"
        finally:
            # Ends the call of `accept`.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Say nothing but what TLS says. In a thread: the loop's server sends no alert."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(1)


def written(authority: trustme.CA, folder: Path, **validity: Any) -> str:
    """Write a client certificate; return the parameters of a URL that names it."""
    certificate = authority.issue_cert("client", **validity)
    key, chain = folder / "client.key", folder / "client.pem"
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    return f"certfile={chain}&keyfile={key}"


def trusting(authority: trustme.CA, folder: Path) -> str:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return f"cafile={folder / 'ca.pem'}"


async def test_what_is_wrong_with_the_certificate_of_the_server(
    authority: trustme.CA, tmp_path: Path
) -> None:
    own = written(authority, tmp_path)
    with tls_server(authority) as url:
        error = await broker_error(f"{url}?{trusting(trustme.CA(), tmp_path)}&{own}")
    assert error.endswith("name the authority that signed it: cafile in TURNSTILE_AMQP_URL")
    trust = trusting(authority, tmp_path)
    with tls_server(authority, **_EXPIRED) as url:
        error = await broker_error(f"{url}?{trust}&{own}")
    assert error == (
        "the server's certificate is refused (certificate has expired): renew it, "
        "or correct the clock of this machine"
    )
    with tls_server(authority, "elsewhere.example") as url:
        error = await broker_error(f"{url}?{trust}&{own}")
    assert error == (
        "the server's certificate is refused (IP address mismatch, certificate is not valid for "
        "'127.0.0.1'): connect to a name that is in the certificate, or issue it for this name"
    )


async def test_what_is_wrong_with_the_certificate_of_the_client(
    authority: trustme.CA, tmp_path: Path
) -> None:
    trust = trusting(authority, tmp_path)
    with tls_server(authority) as url:
        assert (await broker_error(f"{url}?{trust}")).endswith(_NO_CERTIFICATE)
        error = await broker_error(f"{url}?{trust}&{written(trustme.CA(), tmp_path)}")
        assert "it does not know the authority of the client certificate: correct certfile" in error
        error = await broker_error(f"{url}?{trust}&{written(authority, tmp_path, **_EXPIRED)}")
        assert "the client certificate has expired: renew certfile" in error


async def test_a_port_without_tls_and_a_port_with_tls_that_was_named_without(
    authority: trustme.CA, amqp_url: str, tmp_path: Path
) -> None:
    plain = amqp_url.replace("amqp://", "amqps://")
    error = await broker_error(f"{plain}?{trusting(authority, tmp_path)}")
    assert "that port has no TLS: name the one with TLS (5671) in TURNSTILE_AMQP_URL, or use amqp://" in error
    with tls_server(authority) as url:
        error = await broker_error(url.replace("amqps://", "amqp://"))
    assert "TURNSTILE_AMQP_URL names a port that is not that of AMQP (5672, with TLS 5671)" in error
