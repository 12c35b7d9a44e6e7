"""The demonstration: real services on private servers, a little job, and a verdict on what was promised.

In: nothing but the machine. Out: 200 executions watched while they pass, then a report computed from the
history in the database. A reader starts at `run`; then `system` (what is started and stopped), `job` (what
is submitted, and the right answers), `watch` (the live table), `history` (what the record says), `figures`
and `report` (what it means for P1 to P5), `page` (how it is printed).
"""
