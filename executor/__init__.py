"""The executor service: admits executions in arrival order, grants slots, frees them.

One execution: `request_listener` (the request comes in), `queue_manager` (it is admitted and granted),
`dispatcher` (a worker gets the offer), `completion_listener` (its slot is freed and granted on). `protocol`
calls the SQL functions, `watchdog` repairs what was lost, `service` wires the parts together.
"""
