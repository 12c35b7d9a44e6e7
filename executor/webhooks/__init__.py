"""Calls back: tells the ends of executions to the URLs that they named (at least once each, signed).

In: rows of `webhook_delivery`, written in the transaction that settles an end. Out: POSTs, and what became of
them in the rows. `deliverer` claims what is due and goes round; `post` makes one POST, to the addresses that
`addresses` allows, with the headers of `signature`; `judgement` decides what an answer means; `record` says
it to the database. A replica that dies leaves a lease behind, after which another one delivers (P4, P5).
"""
