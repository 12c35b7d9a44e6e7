"""Questions that only the leader can answer: why an execution waits, its position, what a queue has, a start.

Pure: the answers come from the state that decides, so they say what it will do (P10). Nothing here changes
it.
"""
