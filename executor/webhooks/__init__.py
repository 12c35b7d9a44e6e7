"""Webhooks: POSTs completions to the URLs that executions name, at least once each, signed.

In: rows of `ledger.webhook`, which a turn writes with the end of an execution. Out: POSTs, and their results
in the rows. `deliverer` claims what is due, `concurrency` chooses the receivers, `sender` makes one POST
through `ssrf_guard`, `deliveries` has the statements. After a crash the lease of a claim expires, and another
replica delivers (P4, P5).
"""
