"""The reading side: what people and programs may see, read and never written.

In: names, ids, where a page starts. Out: the schemas that the HTTP API shows. A reader reads the rows of one
subject, and asks the leader for what only its memory has; executions are read by `executor.history`.
"""
