"""The executor service: admits executions in arrival order, grants slots, frees them.

`service` wires the HTTP process and `leader_process` its child, the leader. One execution: `leader.amqp`
takes its request, `queue_manager` decides on its admission, grant and end, `leader.ledger` writes each
decision in one statement, `leader.turns` publishes it and acknowledges. HTTP leaves commands in `inbox`.
"""
