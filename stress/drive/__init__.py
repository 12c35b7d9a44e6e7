"""Carries out one stage on an installation, and records what everybody saw of it.

In: a `Stage`, an `Installation`. Out: a `Recording`. A reader starts at `stage`: it opens the actions
(`opening`), sends the load (`submitter`, `requests`) and takes the answers (`answers`), breaks what is to be
broken (`faults`), watches until everything is over (`watcher`), and reads back what the installation recorded
(`record`) and what the actions said themselves (`runs`, `mark_files`).
"""
