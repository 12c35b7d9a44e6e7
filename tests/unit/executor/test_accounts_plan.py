"""The plan of `setup-permissions`: no account of another installation changes unless --rotate asks for it."""

from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest

from turnstile.executor.permissions.plan import (
    PREFIX_BYTES_MAX,
    AccountChange,
    AccountStep,
    Check,
    Installation,
    Present,
    Source,
    default_prefix,
    plan_account,
    remedies,
)

HERE = Installation(database="orders", vhost="orders")
USERS = [frozenset[str](), frozenset({"orders"}), frozenset({"orders", "mail"}), frozenset({"mail"})]


def plan(
    present: Present | None,
    source: Source,
    *,
    rotate: bool = False,
) -> AccountStep:
    return plan_account(
        "broker", "worker", "x-worker", installation=HERE, present=present, source=source, rotate=rotate
    )


def every_present() -> Iterator[Present]:
    for users, password in product(USERS, get_args(Check)):
        yield Present(users=users, password=password)


@pytest.mark.parametrize("source", Source)
def test_an_account_of_another_installation_never_changes_without_rotate(source: Source) -> None:
    for present in every_present():
        step = plan(present, source)
        if "mail" in present.users:
            assert step.change in (AccountChange.KEEP, AccountChange.REFUSE), present
            assert "vhost 'mail'" in step.reason
            if step.change is AccountChange.KEEP:
                assert "orders" in present.users
                assert present.password != "other"


@pytest.mark.parametrize("source", Source)
def test_rotate_takes_over_and_names_the_other_installation(source: Source) -> None:
    for present in every_present():
        step = plan(present, source, rotate=True)
        assert step.change is not AccountChange.REFUSE
        if "mail" in present.users:
            assert step.change is AccountChange.ROTATE
            assert "vhost 'mail'" in step.reason


@pytest.mark.parametrize("source", [Source.GIVEN, Source.INTERRUPTED, Source.STORED])
@pytest.mark.parametrize("password", ["same", "unknown"])
def test_a_second_run_changes_no_password(source: Source, password: Check) -> None:
    assert plan(Present(users=USERS[1], password=password), source).change is AccountChange.KEEP


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (Source.GIVEN, AccountChange.ROTATE),
        (Source.INTERRUPTED, AccountChange.ROTATE),
        # An old copy of the folder must not bring back an old password.
        (Source.STORED, AccountChange.REFUSE),
        (Source.NEW, AccountChange.REFUSE),
    ],
)
def test_a_password_of_its_own_account_changes_only_on_request(source: Source, change: AccountChange) -> None:
    assert plan(Present(users=USERS[1], password="other"), source).change is change


def test_an_account_without_a_password_gets_its_first_one() -> None:
    for users in (USERS[0], USERS[1]):
        assert plan(Present(users=users, password="none"), Source.NEW).change is AccountChange.CREATE


def test_every_refusal_has_a_remedy_and_nothing_else_has() -> None:
    for present, source, rotate in product(every_present(), Source, (False, True)):
        step = plan(present, source, rotate=rotate)
        assert bool(step.remedy) == (step.change is AccountChange.REFUSE)
        assert "--rotate" in remedies([step]) or not step.remedy


def test_a_remedy_suggests_names_that_are_not_the_refused_ones() -> None:
    taken = Present(users=frozenset({"mail"}))
    assert "--prefix turnstile-orders," in plan(taken, Source.NEW).remedy
    refused = plan_account(
        "broker", "worker", "turnstile-orders-worker", installation=HERE, present=taken, source=Source.NEW
    )
    assert "--prefix NAME," in refused.remedy


def test_an_account_is_compared_with_its_database_or_vhost() -> None:
    here = Installation(database="orders", vhost="mail")
    for server, own, other in (("database", "orders", "mail"), ("broker", "mail", "orders")):
        for users, change in ((own, AccountChange.KEEP), (other, AccountChange.REFUSE)):
            step = plan_account(
                server,  # type: ignore[arg-type]
                "worker",
                "x-worker",
                installation=here,
                present=Present(users=frozenset({users}), password="same"),
                source=Source.STORED,
            )
            assert step.change is change


@pytest.mark.parametrize(
    ("database", "vhost", "prefix"),
    [
        ("turnstile", "turnstile", "turnstile"),
        ("turnstile", "/", "turnstile"),
        ("orders", "/", "turnstile-orders"),
        ("orders", "orders", "turnstile-orders"),
        ("orders", "turnstile", "turnstile-orders"),
        ("turnstile", "orders", "turnstile-orders"),
        ("orders", "mail", "turnstile-orders-mail"),
        ("Orders of 2026", "/eu/", "turnstile-Orders-of-2026-eu"),
    ],
)
def test_the_default_names_carry_the_installation(database: str, vhost: str, prefix: str) -> None:
    assert default_prefix(Installation(database=database, vhost=vhost)) == prefix


def test_a_default_name_fits_into_the_name_of_a_role() -> None:
    prefix = default_prefix(Installation(database="d" * 63, vhost="/"))
    assert len(prefix) == PREFIX_BYTES_MAX
