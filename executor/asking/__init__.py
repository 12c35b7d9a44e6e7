"""How questions reach the leader: over the socket of its own process, or over the broker from other hosts.

`asker` is the side that asks. In the leader's process `audience` keeps the questions until the commit after
which they may be answered; `questions` says what they are.
"""
