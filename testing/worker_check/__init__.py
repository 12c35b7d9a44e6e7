"""The conformance kit of `turnstile worker-check`: plays the leader against a worker, and says what is wrong.

In: the command of a worker, and a broker. Out: the verdict of each case, in sentences that name the section
of docs/worker-protocol.md. Read `cases` first: each case is one rule of that page. `leader` is the scripted
leader, `scene` runs the worker of one case, `invariants` holds what every case must keep, `actions` is the
action that a Python worker serves; a worker in another language has one like it.
"""
