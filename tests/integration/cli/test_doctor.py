"""`executor doctor` on real servers: each prepared wrong surrounding is found, and nothing is changed."""

import resource
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, urlsplit

import pytest

from tests.integration.cli.conftest import CommandLines, until
from tests.support.broker_administration import delete_policy, set_policy
from tests.support.pooler import pgbouncer
from tests.support.processes import System
from turnstile.localservers import DatabaseServer, PostgresServer
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.rabbitmq import RabbitServer

_PASSWORD: Final = "s3cr3t-of-the-tests"
_DEAD_LETTER: Final = """
INSERT INTO ledger.dead_letter (fingerprint, code, error, exchange, routing_key, original_routing_key, tries,
                                died_at, stored_at, headers, body, body_bytes, stored_bytes)
VALUES ('one', 'maxlen', '', '', '', '', 0, now(), now(), '{}', '', 0, 0)
"""
_ENDS_WITHIN_SECONDS: Final = 15.0


class Doctor:
    """The command against one database and one vhost."""

    def __init__(self, command_lines: CommandLines, database_url: str, amqp_url: str) -> None:
        self._command_lines = command_lines
        self._urls = {"TURNSTILE_DATABASE_URL": database_url, "TURNSTILE_AMQP_URL": amqp_url}

    def finds(self, **settings: str) -> dict[str, tuple[str, str]]:
        """Return status and sentence by check; the exit code says whether one failed."""
        ended = self._command_lines.executor("doctor", "--json", **{**self._urls, **settings})
        assert _PASSWORD not in ended.out + ended.err
        found = {each["check"]: (each["status"], each["sentence"]) for each in ended.lines}
        assert ended.exit_code == any(status == "failed" for status, _ in found.values()), ended
        return found


@pytest.fixture
def doctor(alone: CommandLines, database_url: str, amqp_url: str) -> Doctor:
    return Doctor(alone, database_url, amqp_url)


@pytest.fixture
def controlled(alone: CommandLines, database_url: str, controlled_amqp_url: str) -> Doctor:
    return Doctor(alone, database_url, controlled_amqp_url)


@pytest.fixture
def own(alone: CommandLines, own_postgresql: PostgresServer, amqp_url: str) -> Iterator[Doctor]:
    yield Doctor(alone, own_postgresql.url(), amqp_url)
    own_postgresql.restart()


def test_of_an_installation_that_works_all_is_well_but_what_test_servers_lack(
    alone: CommandLines, processes: System
) -> None:
    doctor = Doctor(alone, processes.database_url, processes.amqp_url)
    found = doctor.finds(TURNSTILE_API_TOKENS=_PASSWORD)
    others = {name: status for name, (status, _) in found.items() if status != "ok"}
    assert others == {"audit log": "warning", "durability": "warning", "policies": "not checked"}
    assert "fsync = on and full_page_writes = on" in found["durability"][1]
    assert found["leader"][1] == "an executor leads"
    assert "TURNSTILE_MANAGEMENT_URL is not set" in found["policies"][1]


def test_people_read_a_table_that_ends_with_a_count(
    alone: CommandLines, database_url: str, amqp_url: str
) -> None:
    ended = alone.executor("doctor", TURNSTILE_DATABASE_URL=database_url, TURNSTILE_AMQP_URL=amqp_url)
    first, *_, last = ended.out.splitlines()
    assert first.split() == ["STATUS", "CHECK", "FINDING"]
    assert (ended.exit_code, last, ended.err) == (0, "0 failed, 3 warnings", "")


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        (
            "DROP SCHEMA ledger CASCADE; DROP TABLE public.alembic_version",
            ("schema", "failed", "run 'executor migrate'"),
        ),
        (
            "UPDATE public.alembic_version SET version_num = '9999'",
            ("schema", "warning", "upgrade this service"),
        ),
        (
            "ALTER DATABASE {0} SET session_replication_role = replica",
            ("encoding and triggers", "failed", "RESET session_replication_role"),
        ),
        (
            "ALTER DATABASE {0} CONNECTION LIMIT 4",
            ("connections", "warning", "ALTER DATABASE {0} CONNECTION LIMIT -1"),
        ),
        (
            "UPDATE pg_database SET datcollversion = '1' WHERE datname = '{0}'",
            ("collation", "warning", "REINDEX DATABASE {0}"),
        ),
        (
            _DEAD_LETTER.replace("{", "{{").replace("}", "}}"),
            ("dropped messages", "warning", "executor dead-letters replay --code maxlen"),
        ),
        ("SELECT 1", ("leader", "warning", "start one with 'executor serve'")),
    ],
    ids=["no schema", "newer schema", "no triggers", "limit", "collation", "dropped", "no leader"],
)
def test_what_is_wrong_with_a_database_is_found(
    doctor: Doctor, postgresql: DatabaseServer, database_url: str, statement: str, finding: tuple[str, ...]
) -> None:
    check, status, says = finding
    name = urlsplit(database_url).path[1:]
    for each in statement.format(name).split(";"):
        postgresql.execute(each, name)
    found = doctor.finds()
    assert found[check][0] == status
    assert says.format(name) in found[check][1]


def test_an_encoding_that_cannot_store_every_text_is_found(
    doctor: Doctor, postgresql: DatabaseServer, database_url: str
) -> None:
    name = f"{urlsplit(database_url).path[1:]}_latin"
    postgresql.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    try:
        found = doctor.finds(TURNSTILE_DATABASE_URL=postgresql.url(name))
    finally:
        postgresql.drop_database(name)
    assert found["encoding and triggers"][0] == "failed"
    assert "LATIN1" in found["encoding and triggers"][1]


def test_a_role_without_rights_is_found(
    doctor: Doctor, postgresql: DatabaseServer, database_url: str
) -> None:
    parts = urlsplit(database_url)
    role = f"{parts.path[1:]}_poor"
    postgresql.execute(f"CREATE ROLE {role} LOGIN")
    try:
        host = parts.netloc.rpartition("@")[2]
        found = doctor.finds(
            TURNSTILE_DATABASE_URL=parts._replace(netloc=f"{role}:{_PASSWORD}@{host}").geturl()
        )
    finally:
        postgresql.execute(f"DROP ROLE {role}")
    assert found["database rights"][0] == "failed"
    assert "executor setup-permissions" in found["database rights"][1]


def test_an_executor_whose_role_may_change_the_audit_log_is_found_where_callers_have_names(
    doctor: Doctor,
) -> None:
    found = doctor.finds(TURNSTILE_API_TOKENS=f"alice:operate:{_PASSWORD}")
    assert found["audit log"][0] == "warning"
    assert "executor setup-permissions" in found["audit log"][1]
    assert doctor.finds()["audit log"][0] == "ok"


def test_servers_that_are_not_there_and_names_that_they_do_not_know_are_found(
    doctor: Doctor, database_url: str, amqp_url: str
) -> None:
    found = doctor.finds(
        TURNSTILE_DATABASE_URL=f"postgresql://a:{_PASSWORD}@{LOOPBACK}:{free_port()}/b",
        TURNSTILE_AMQP_URL=f"amqp://a:{_PASSWORD}@{LOOPBACK}:{free_port()}/",
    )
    for server in ("database", "broker"):
        assert found[server][0] == "failed"
        assert "no server accepts connections there" in found[server][1]
    assert found["schema"] == ("not checked", "the database cannot be used")
    assert found["publishing"] == ("not checked", "the broker cannot be used")
    found = doctor.finds(
        TURNSTILE_DATABASE_URL=f"{database_url}_missing",
        TURNSTILE_AMQP_URL=urlsplit(amqp_url)._replace(path="/no%20such").geturl(),
    )
    assert "create it with 'createdb'" in found["database"][1]
    assert "rabbitmqctl add_vhost 'no such'" in found["broker"][1]


def test_one_node_of_several_that_does_not_answer_is_a_warning(doctor: Doctor, amqp_url: str) -> None:
    parts = urlsplit(amqp_url)
    down = parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{free_port()}").geturl()
    found = doctor.finds(TURNSTILE_AMQP_URL=f"{down},{amqp_url}")
    assert (found["broker"][0], found["publishing"][0]) == ("warning", "ok")


def test_a_pooler_is_named_and_refused_in_transaction_mode(doctor: Doctor, database_url: str) -> None:
    with pgbouncer(database_url, "session") as url:
        found = doctor.finds(TURNSTILE_DATABASE_URL=url)
    assert found["database"] == ("ok", "the server answers, through a connection pooler in session mode")
    assert found["session settings"][0] == "ok"
    with pgbouncer(database_url, "transaction") as url:
        found = doctor.finds(TURNSTILE_DATABASE_URL=url)
    assert found["database"][0] == "failed"
    assert "set pool_mode = session for this database in the pooler" in found["database"][1]


def test_a_server_in_recovery_is_found(own: Doctor, own_postgresql: PostgresServer) -> None:
    signal = own_postgresql.folder / "data" / "standby.signal"
    signal.touch()
    own_postgresql.restart()
    try:
        assert own.finds()["primary"][0] == "failed"
    finally:
        signal.unlink()


def test_a_server_without_free_connections_for_one_more_executor_is_found(
    own: Doctor, own_postgresql: PostgresServer
) -> None:
    own_postgresql.execute("ALTER SYSTEM SET max_connections = 12")
    own_postgresql.restart()
    try:
        status, sentence = own.finds()["connections"]
    finally:
        own_postgresql.execute("ALTER SYSTEM RESET max_connections")
    assert (status, "raise max_connections" in sentence) == ("warning", True)


def test_servers_that_stand_still_are_found_within_15_seconds(
    own: Doctor, own_postgresql: PostgresServer
) -> None:
    began = time.monotonic()
    own_postgresql.pause()
    try:
        found = own.finds()
    finally:
        own_postgresql.resume()
    assert time.monotonic() - began < _ENDS_WITHIN_SECONDS
    assert found["database"][0] == "failed"
    assert "the server did not answer in time" in found["database"][1]


def test_the_doctor_creates_nothing_on_a_broker_without_queues(
    doctor: Doctor, controlled_broker: RabbitServer, amqp_url: str
) -> None:
    status, sentence = doctor.finds()["queues and exchanges"]
    assert (status, "executor.requests" in sentence) == ("warning", True)
    assert "rights in the vhost are not checked" in sentence
    assert doctor.finds()["queues and exchanges"][0] == "warning"


def test_queues_of_another_type_are_found(alone: CommandLines, processes: System) -> None:
    doctor = Doctor(alone, processes.database_url, processes.amqp_url)
    status, sentence = doctor.finds(TURNSTILE_QUEUE_TYPE="classic")["queues and exchanges"]
    assert (status, "set TURNSTILE_QUEUE_TYPE" in sentence) == ("failed", True)
    assert "executions.dead_letters" in sentence


def test_an_account_without_rights_in_the_vhost_is_found(
    controlled_broker: RabbitServer, alone: CommandLines, processes: System
) -> None:
    parts = urlsplit(processes.amqp_url)
    vhost, user = parts.path[1:], f"poor-{parts.path[1:]}"
    controlled_broker.ctl("add_user", user, _PASSWORD)
    try:
        controlled_broker.ctl("set_permissions", "-p", vhost, user, "^$", "^amq.default$", "^$")
        host = parts.netloc.rpartition("@")[2]
        url = parts._replace(netloc=f"{user}:{_PASSWORD}@{host}").geturl()
        status, sentence = Doctor(alone, processes.database_url, url).finds()["queues and exchanges"]
    finally:
        controlled_broker.ctl("delete_user", user)
    assert (status, "executor setup-permissions" in sentence) == ("failed", True)


def test_an_alarm_of_the_broker_is_found(controlled: Doctor, controlled_broker: RabbitServer) -> None:
    controlled_broker.ctl("set_disk_free_limit", str(10**18))
    try:
        # The broker raises the alarm a little later.
        until(lambda: controlled.finds()["publishing"][0] == "failed")
        status, sentence = controlled.finds()["publishing"]
    finally:
        controlled_broker.ctl("set_disk_free_limit", "50MB")
    assert (status, "memory or disk alarm" in sentence) == ("failed", True)
    until(lambda: controlled.finds()["publishing"] == ("ok", "the broker confirms messages"))


def test_a_policy_that_drops_messages_is_found_with_the_management_api(
    controlled: Doctor, controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    parts = urlsplit(controlled_amqp_url)
    account = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
    url = controlled_broker.management_url.replace("http://", f"http://{account}@")
    assert controlled.finds(TURNSTILE_MANAGEMENT_URL=url)["policies"][0] == "ok"
    vhost = parts.path[1:]
    set_policy(controlled_broker, vhost, "short", "^executor.requests$", {"max-length": 10})
    try:
        status, sentence = controlled.finds(TURNSTILE_MANAGEMENT_URL=url)["policies"]
    finally:
        delete_policy(controlled_broker, vhost, "short")
    assert (status, f"rabbitmqctl clear_policy -p {vhost} short" in sentence) == ("failed", True)
    wrong = controlled_broker.management_url.replace("http://", f"http://a:{_PASSWORD}@")
    status, sentence = controlled.finds(TURNSTILE_MANAGEMENT_URL=wrong)["policies"]
    assert (status, "refuses the user" in sentence) == ("not checked", True)


def test_limits_and_misspelt_settings_of_this_host_are_found(doctor: Doctor) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        found = doctor.finds(TURNSTILE_HTTP_PROT="1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found["open files"][0] == found["settings"][0] == "warning"
    assert "ulimit -n" in found["open files"][1]
    assert "did you mean TURNSTILE_HTTP_PORT?" in found["settings"][1]
    assert doctor.finds()["settings"][0] == "ok"


def test_an_invalid_setting_is_named_before_any_check(alone: CommandLines) -> None:
    ended = alone.executor("doctor", TURNSTILE_HTTP_PORT="none")
    assert (ended.exit_code, ended.out) == (2, "")
    assert "TURNSTILE_HTTP_PORT" in ended.err
