"""What both services use to talk to RabbitMQ: topology, confirmed bulk publishing, batch consumption.

Publishers and consumers have connections of their own, since an alarm in the broker blocks the publishers'.
"""
