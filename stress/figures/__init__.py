"""Measures a recorded stage: how fast, how evenly, how soon after a fault.

In: a `Recording`. Out: `StageFigures`; and from all stages of a run the five figures. Pure. A reader starts
at `measure`; `values` is what comes out, `five` puts the figures of a whole run side by side.
"""
