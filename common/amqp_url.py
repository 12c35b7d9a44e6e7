"""The broker's URL, or the URLs of several nodes of one cluster, by commas.

In: what somebody wrote. Out: one URL per node, or a complaint in plain words. Next:
`common.broker.connection` goes from node to node.
"""

import re
from typing import Final

from yarl import URL

from turnstile.common.tls import check_authority, check_key_pair

EXPECTED: Final = "amqp://user:password@host:port/vhost"
SEVERAL: Final = "amqp://user:password@a:5672/vhost,amqp://user:password@b:5672/vhost"
_SCHEMES: Final = ("amqp", "amqps")
_TLS: Final = frozenset({"cafile", "certfile", "keyfile", "no_verify_ssl"})
# A comma inside a URL, as in a password, belongs to the URL.
_NEXT_URL: Final = re.compile(r"\s*,\s*(?=[a-z]+://)")


def amqp_urls(text: str, **parameters: int) -> list[URL]:
    """Return the URL of each node, with these parameters where its query has none of the name.

    Raises ValueError with what is expected instead.
    """
    urls = [_read(part) for part in _NEXT_URL.split(text.strip())]
    if len({url.path.lstrip("/") for url in urls}) > 1:
        raise ValueError(f"all nodes must be given with the same vhost, as in {SEVERAL}")
    return [
        url.update_query({name: value for name, value in parameters.items() if name not in url.query})
        for url in urls
    ]


def _read(text: str) -> URL:
    if "://" not in text:
        raise ValueError(f"not a URL; expected {EXPECTED}")
    try:
        url = URL(text)
        host, port = url.host or "", url.port
        # As the driver will have it, which stumbles over an empty label.
        host.encode("idna")
    except ValueError:
        raise ValueError(
            f"host or port is wrong; expected {EXPECTED}, or for several nodes {SEVERAL}"
        ) from None
    if url.scheme not in _SCHEMES or not host or port == 0:
        raise ValueError(f"expected {EXPECTED}")
    if "," in host or "," in url.raw_path:
        raise ValueError(f"several nodes are several whole URLs: {SEVERAL}")
    _check_tls(url)
    return url


def _check_tls(url: URL) -> None:
    if (found := _TLS & url.query.keys()) and url.scheme != "amqps":
        raise ValueError(f"{min(found)}: is for TLS; say amqps:// too, and its port")
    if url.query.get("no_verify_ssl", "0") != "0":
        raise ValueError(
            "no_verify_ssl: any server would do; name the authority of yours: ?cafile=/path/ca.pem"
        )
    check_authority(url.query, "cafile")
    check_key_pair(url.query, "certfile", "keyfile")
