"""Private PostgreSQL and RabbitMQ servers on free loopback ports, for demo, stress test and tests.

    with LocalServers.start() as servers:
        database_url = servers.postgresql.create_database("orders")
        amqp_url = servers.rabbitmq.create_vhost("orders")

Nothing of them survives the process that started them, kill -9 included. `services` runs Python services
beside them in the same way. Imports no other package of the project.
"""

from turnstile.localservers.errors import LocalServersError, MissingBinaries, ServerFailed
from turnstile.localservers.postgresql import DatabaseServer, PostgresServer
from turnstile.localservers.rabbitmq import BrokerServer, RabbitServer
from turnstile.localservers.servers import LocalServers, running_servers, servers_for_tests
from turnstile.localservers.services import until_signal

__all__ = [
    "BrokerServer",
    "DatabaseServer",
    "LocalServers",
    "LocalServersError",
    "MissingBinaries",
    "PostgresServer",
    "RabbitServer",
    "ServerFailed",
    "running_servers",
    "servers_for_tests",
    "until_signal",
]
