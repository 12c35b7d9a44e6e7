"""The database's URL: one host or several, and never a password where people look."""

import pytest

from turnstile.common.database_url import check_database_url, driver_url, host_urls, shown_url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p%40ss@host:5432/db",
        "postgres://host/db",
        "postgresql+asyncpg://host/db",
        "postgresql://user:secret@a:5432,b:5433/db?target_session_attrs=read-write",
        "postgresql://user@[::1]:5434/db",
        "postgresql://user@/db?host=/run/postgresql",
        "postgresql://user@%2Frun%2Fa..b/db",
        "postgresql://host?dbname=db",
        "postgresql://user:a:b,c@host/db",
    ],
)
def test_what_libpq_takes_is_taken(url: str) -> None:
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
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_name_of_a_driver_is_left_out_for_the_driver() -> None:
    assert driver_url("postgresql+asyncpg://me:se@a/db") == "postgresql://me:se@a/db"
    assert driver_url("postgres://me@a,b/db?x=y") == "postgres://me@a,b/db?x=y"


def test_each_host_has_a_url_of_its_own_and_of_several_only_the_primary_will_do() -> None:
    assert host_urls("postgresql+asyncpg://me:se@a/db") == ["postgresql://me:se@a/db"]
    assert host_urls("postgresql://me:s,e@a:1,b:2/db?sslmode=require") == [
        "postgresql://me:s,e@a:1/db?sslmode=require&target_session_attrs=primary",
        "postgresql://me:s,e@b:2/db?sslmode=require&target_session_attrs=primary",
    ]
    assert host_urls("postgresql://a,b/db?target_session_attrs=any") == [
        "postgresql://a/db?target_session_attrs=any",
        "postgresql://b/db?target_session_attrs=any",
    ]


@pytest.mark.parametrize("host", ["a..b", "a:1,.b:2"])
def test_a_host_with_an_empty_label_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is no name of a host"):
        check_database_url(f"postgresql://x@{host}/db")
