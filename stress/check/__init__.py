"""Judges a recorded stage: what was promised, and every place where the history says otherwise.

In: a `Recording`. Out: a `Verdict` with one finding for each rule, broken or not. Pure; a million executions
in well under a minute, as whole columns. A reader starts at `judge`; each other module holds the rules about
one thing, `verdict` what comes out.
"""
