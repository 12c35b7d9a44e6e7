"""The rights of every account, in one table: on the tables of PostgreSQL, and on the vhost of RabbitMQ.

Drawn from it: the grants of the database (`grants_sql`), the permissions of the broker (`broker`), the check
of `executor doctor`, and the page of the reference. Anything that is not in it is refused.

A worker creates and reads the queue of its session, which is exclusive to its connection, and publishes to
the exchange `executor`, to which nothing but the leader's queues is bound; it binds nothing. So it cannot
submit, tell listeners anything or give orders to other workers. What it reports is believed only with the
secret of the worker that it names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turnstile.common.broker.topology import EXECUTIONS, EXECUTOR, EXECUTOR_REQUESTS

NOTHING: Final = "^$"
_ID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS: Final = r"^(executions|executor)(\..+)?$|^amq\.gen-.+$"
"""With the queue of each leader process for questions, which the broker names."""
_SESSION_QUEUES: Final = rf"^worker\.{_ID}\.[0-9]+$"
_CLIENT_QUEUES: Final = rf"^client\.{_ID}\.(answers|ends)$"
_REQUESTS: Final = r"^execution\.(requested|cancel_requested)$"


class Topics(NamedTuple):
    """Routing keys on one topic exchange."""

    write: str
    """To publish with."""
    read: str = NOTHING
    """To bind with."""


class BrokerRights(NamedTuple):
    """What an account may do in the vhost, as RabbitMQ's patterns."""

    configure: str
    write: str
    read: str
    topics: Mapping[str, Topics] = {}
    """By exchange."""


class Grant(NamedTuple):
    """What a group of the database may do; for all objects of a kind in `ledger`, also later ones."""

    privileges: tuple[str, ...]
    on: str
    but: tuple[str, ...] = ()
    """Tables where only `kept` is left of it."""
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One service or group, and all of its rights."""

    service: str
    group: str | None = None
    """Of PostgreSQL; None: no access to the database."""
    grants: tuple[Grant, ...] = field(default=())
    broker: BrokerRights | None = None


APPEND_ONLY: Final = ("ledger.audit_log",)
"""`prune_audit_log` deletes old rows with the rights of its owner."""
RIGHTS: Final = (
    Account(
        service="executor",
        group="turnstile_executor",
        grants=(
            Grant(("USAGE",), "SCHEMA ledger, turnstile, public"),
            Grant(("EXECUTE",), "ALL FUNCTIONS IN SCHEMA ledger, turnstile"),
            Grant(
                ("SELECT", "INSERT", "UPDATE", "DELETE"),
                "ALL TABLES IN SCHEMA ledger",
                but=APPEND_ONLY,
                kept=("SELECT", "INSERT"),
            ),
            Grant(("USAGE", "SELECT"), "ALL SEQUENCES IN SCHEMA ledger"),
            # Only `migrate` changes the revision.
            Grant(("SELECT",), "public.alembic_version"),
        ),
        broker=BrokerRights(
            configure=_OURS,
            # The default exchange: it leads to the sessions of workers, and to any queue that a submitter
            # names for its reply.
            write=rf"{_OURS}|^amq\.default$",
            read=_OURS,
        ),
    ),
    Account(
        service="worker",
        # Not the exchange to read: an account that may read an exchange may bind a queue to it.
        broker=BrokerRights(configure=_SESSION_QUEUES, write=f"^{EXECUTOR}$", read=_SESSION_QUEUES),
    ),
    Account(
        service="client",
        broker=BrokerRights(
            configure=_CLIENT_QUEUES,
            write=rf"^{EXECUTIONS}$|^executor\.requests$|{_CLIENT_QUEUES}",
            read=rf"^{EXECUTIONS}$|{_CLIENT_QUEUES}",
            topics={
                EXECUTIONS: Topics(_REQUESTS, r"^execution\.(completed(\..+)?|status_changed)$"),
                EXECUTOR_REQUESTS: Topics(_REQUESTS),
            },
        ),
    ),
    # A group only: an operator grants it to accounts of applications.
    Account(
        service="submitter",
        group="turnstile_submitter",
        grants=(
            Grant(("USAGE",), "SCHEMA turnstile"),
            Grant(("EXECUTE",), "FUNCTION turnstile.submit, turnstile.submission"),
        ),
    ),
)
BROKER: Final = {each.service: each.broker for each in RIGHTS if each.broker is not None}
"""The services, which have an account each."""
GROUPS: Final = {each.service: each.group for each in RIGHTS if each.group is not None}


def table_privileges() -> Grant:
    """Return what an executor needs on the tables of the ledger."""
    (found,) = (grant for grant in RIGHTS[0].grants if grant.on.startswith("ALL TABLES"))
    return found


def grants_sql() -> str:
    """Return the statements that give the groups their rights, where these exist.

    They may be run at any time. Rights on all tables, sequences and functions of the ledger are for those of
    later migrations too. `rights.sql` has the same text for the migrations, which import nothing of this.
    """
    statements = [_HEAD]
    for each in RIGHTS:
        if each.group is not None:
            granted = [f"        {line}" for grant in each.grants for line in _granted(each.group, grant)]
            statements.append(_OF_GROUP.format(group=each.group, granted="\n".join(granted)))
    return "\n".join(statements)


_HEAD: Final = """\
-- Written from executor/permissions/rights.py by `make reference`.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ledger, turnstile FROM PUBLIC;
"""
_OF_GROUP: Final = """\
DO $$
DECLARE
    owner text := (SELECT tableowner FROM pg_tables WHERE schemaname = 'ledger' AND tablename = 'execution');
BEGIN
    IF to_regrole('{group}') IS NOT NULL THEN
{granted}
    END IF;
END $$;
"""


def _granted(group: str, grant: Grant) -> Iterator[str]:
    privileges = ", ".join(grant.privileges)
    yield f"GRANT {privileges} ON {grant.on} TO {group};"
    for table in grant.but:
        lacking = ", ".join(each for each in grant.privileges if each not in grant.kept)
        yield f"REVOKE {lacking} ON {table} FROM {group};"
    if grant.on.startswith("ALL "):
        kind = grant.on.split()[1]
        yield "EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA ledger'"
        yield f"    ' GRANT {privileges} ON {kind} TO {group}', owner);"
