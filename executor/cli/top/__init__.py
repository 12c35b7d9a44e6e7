"""`executor top`: what goes on, on one screen, once a second; keys pause, resume and change a limit.

In: the API's list of queues and of workers, and keys. Out: a screen; where there is no terminal, one plain
print. `command` runs it, `keyboard` reads keys, `view` is what is seen and what a key does to it (pure),
`picture` draws it.
"""

from turnstile.executor.cli.top.command import top

__all__ = ["top"]
