"""The connection to RabbitMQ: topology, publishing in bulk with confirms, consuming in batches.

Publishers and consumers use separate connections, because a resource alarm of the broker blocks publishers.
Imports go one way: message, frames, confirms, errors < channel < connection < publisher, consumer.
"""
