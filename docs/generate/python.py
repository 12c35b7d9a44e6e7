"""What people import: the worker's side and the client."""

_PAGE = """# Python

## For actions: `turnstile`

```{eval-rst}
.. automodule:: turnstile
   :no-members:

.. autofunction:: turnstile.action
.. autofunction:: turnstile.command_action
.. autofunction:: turnstile.http_action
.. autoclass:: turnstile.Context
.. autoexception:: turnstile.PermanentError
.. autoexception:: turnstile.TemporaryError
```

## For submitting: `turnstile.client`

```{eval-rst}
.. automodule:: turnstile.client
   :no-members:

.. autoclass:: turnstile.client.AsyncClient
.. autoclass:: turnstile.client.Client
.. autoclass:: turnstile.client.Submitted
.. autoclass:: turnstile.client.Completion
.. autoexception:: turnstile.client.Rejected
.. autoexception:: turnstile.client.ExecutionFailed
.. autoexception:: turnstile.client.Unavailable
```
"""


def page() -> str:
    """Return the page."""
    return _PAGE
