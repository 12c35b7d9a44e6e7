"""Private PostgreSQL and RabbitMQ servers on free loopback ports, for demonstrations and tests.

    with LocalServers.start() as servers:
        database_url = servers.postgresql.create_database("orders")
        amqp_url = servers.rabbitmq.create_vhost("orders")

Nothing of them survives the process that started them, kill -9 included. `services` runs what uses them in
the same way. Imports nothing of the other packages.
"""

from turnstile.localservers.databases import DatabaseServer
from turnstile.localservers.errors import LocalServersError, MissingBinaries, ServerFailed
from turnstile.localservers.postgresql import PostgresServer
from turnstile.localservers.rabbitmq import RabbitServer
from turnstile.localservers.servers import LocalServers, running_servers
from turnstile.localservers.vhosts import BrokerServer

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
]
