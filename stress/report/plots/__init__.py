"""Draws a stage: what its tables hold, as pictures for people who have never seen the system.

In: a `Recording`, what was measured of it. Out: `Picture` values, each with a caption that says how to read
it. Every picture bins its rows first, so that a million of them cost what a thousand do. A reader starts at
`gallery`, which chooses; `style` is how all of them look, `timeline` what those over time share, `levels` how
many there were at each moment.
"""
