"""The reading side: what people and programs may see, read and never written.

In: ids, filters, cursors. Out: the schemas that the HTTP API shows, each page from one snapshot of the rows.
`reader` runs the queries: those of `statements`, which have a filter, and those of `executor.sql`.
"""
