"""The HTTP API: routes under `/api/v1`, problem documents, bearer tokens, and the dashboard at `/`.

In: requests. Out: what the leader decided (`executor.inbox`) or answered (`executor.asking`), and what
`executor.history` and `executor.queries` read. `app.create_app` puts it together; a module holds the routes
of one resource. A body is read as strictly as a message (`bodies`), and every error is a problem document
(`problems`).
"""
