"""The stress harness: puts an installation under load, and says whether it kept its promises.

In: a load, described or taken from a preset; the URLs of an installation, or none for a private one. Out: a
verdict over the whole history, five figures, and a report with pictures. It talks to the system only as a
user does: over AMQP, over HTTP, and through actions of its own.

A reader starts at `cli`; then `stage` (what is done), `load` (what is asked, a function of the seed), `drive`
(asks it and records), `recording` (what everybody saw), `check` (what must hold), `figures` (how well), and
`report` (how it is shown). `installation` is where it all happens, `local` makes a private one and breaks it.
"""
