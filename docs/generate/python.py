"""What people import: the worker's side and the client."""

_PAGE = """# Python

## For actions: `worker`

```{eval-rst}
.. automodule:: worker
   :no-members:

.. autofunction:: worker.action
.. autofunction:: worker.command_action
.. autofunction:: worker.http_action
.. autoclass:: worker.Context
.. autoexception:: worker.PermanentError
.. autoexception:: worker.TemporaryError
```

## For submitting: `client`

```{eval-rst}
.. automodule:: client
   :no-members:

.. autoclass:: client.AsyncClient
.. autoclass:: client.Client
.. autoclass:: client.Submitted
.. autoclass:: client.Completion
.. autoexception:: client.Rejected
.. autoexception:: client.ExecutionFailed
.. autoexception:: client.Unavailable
```
"""


def page() -> str:
    """Return the page."""
    return _PAGE
