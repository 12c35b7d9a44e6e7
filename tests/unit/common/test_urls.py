"""The URLs of the servers: several nodes or hosts, clear errors, and no password in what is shown."""

import pytest

from turnstile.common.urls import amqp_urls, check_database_url, driver_url, host_urls, shown_url


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("amqp://user:secret@there/orders", ["amqp://user:secret@there/orders"]),
        ("amqp://a:5672/v,amqp://b:5673/v", ["amqp://a:5672/v", "amqp://b:5673/v"]),
        ("amqps://a/v , amqps://b/v", ["amqps://a/v", "amqps://b/v"]),
        ("amqp://user:one,two@a/v,amqp://b/v", ["amqp://user:one,two@a/v", "amqp://b/v"]),
    ],
)
def test_nodes_are_whole_urls_separated_by_commas(text: str, nodes: list[str]) -> None:
    assert [str(url) for url in amqp_urls(text)] == nodes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nowhere", "not a URL"),
        ("http://there/", "expected amqp://"),
        ("amqp:///no-host", "expected amqp://"),
        ("amqp://there:port/", "host or port is wrong"),
        ("amqp://there:99999/", "host or port is wrong"),
        ("amqp://a..b/", "host or port is wrong"),
        ("amqp://xn--a/", "host or port is wrong"),
        ("amqp://a:5672,b:5672/v", "amqp://user:password@a:5672/vhost,amqp://"),
        ("amqp://a,b/v", "several whole URLs"),
        ("amqp://a/v,b:5672/v", "several whole URLs"),
        ("amqp://a/v,", "several whole URLs"),
        ("amqp://a/one,amqp://b/other", "the same vhost"),
    ],
)
def test_a_wrong_broker_url_is_refused_with_what_is_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        amqp_urls(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", 2),
        ("?heartbeat=1", 1),
        ("?heartbeat=7", 2),
        ("?heartbeat=0", 2),
        ("?heartbeat=-1", 2),
        ("?heartbeat=x", 2),
    ],
)
def test_a_url_may_only_shorten_the_heartbeat(given: str, expected: int) -> None:
    (url,) = amqp_urls(f"amqp://a/v{given}", heartbeat=2)
    assert url.query["heartbeat"] == str(expected)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p%40ss@host:5432/db", "postgres://host/db", "postgresql+asyncpg://host/db",
        "postgresql://user:secret@a:5432,b:5433/db?target_session_attrs=read-write",
        "postgresql://user@[::1]:5434/db", "postgresql://user@/db?host=/run/postgresql",
        "postgresql://user@%2Frun%2Fa..b/db", "postgresql://host?dbname=db", "postgresql://user:a:b,c@host/db",
    ],
)  # fmt: skip
def test_a_database_url_that_libpq_accepts_is_accepted(url: str) -> None:
    check_database_url(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://x@a..b/db", "is not a host name"),
        ("postgresql://x@a:1,.b:2/db", "is not a host name"),
        ("postgresql://here:5432,there:port/db", "a port is not a number up to 65535"),
        ("postgresql://there", "expected postgresql://"),
        ("postgresql://there/db?sslmode=maybe", "sslmode: expected one of disable"),
    ],
)
def test_a_wrong_database_url_is_refused_with_what_is_expected(url: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check_database_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@a:5432,b:5433/db", "postgresql://me:***@a:5432,b:5433/db"),
        ("postgresql://me:se@cret@a/db", "postgresql://me:***@a/db"),
        ("postgresql://me@a/db?password=secret&sslmode=require", "postgresql://me@a/db?sslmode=require"),
        ("postgresql://a/db", "postgresql://a/db"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_driver_gets_one_url_per_host_and_uses_only_the_primary_of_several() -> None:
    assert driver_url("postgres://me@a,b/db?x=y") == "postgres://me@a,b/db?x=y"
    assert host_urls("postgresql+asyncpg://me:se@a/db") == ["postgresql://me:se@a/db"]
    assert host_urls("postgresql://me:s,e@a:1,b:2/db?sslmode=require") == [
        "postgresql://me:s,e@a:1/db?sslmode=require&target_session_attrs=primary",
        "postgresql://me:s,e@b:2/db?sslmode=require&target_session_attrs=primary",
    ]
    assert host_urls("postgresql://a,b/db?target_session_attrs=any") == [
        "postgresql://a/db?target_session_attrs=any",
        "postgresql://b/db?target_session_attrs=any",
    ]
