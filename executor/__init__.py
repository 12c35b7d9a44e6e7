"""The executor service: admits executions in arrival order, grants slots, frees them.

Read `request_listener` (a request comes in), `queue_manager` (it is admitted and granted),
`hand_over` (workers are told), `completion_listener` (its slot is freed and granted on). `service` wires
them together.
"""
