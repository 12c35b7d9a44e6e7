"""The leader: takes what arrived, decides, writes, publishes, acknowledges, one turn after another.

Read `turns` first. `leadership` is the epoch, `sessions` the workers, `records` what the ledger stores,
`loading` how a new leader finds the state again, `ports` what the leader needs of broker, database and
clock. Nothing leaves it before a statement that checks the epoch has committed (P5, P6).
"""
