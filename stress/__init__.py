"""The stress test: loads an installation, records its whole history, and checks which promises it kept.

It uses the system only as users do: over AMQP, over HTTP, and through actions of its own. `cli` and `config`
read the options, `presets` and `load` plan scenarios (pure functions of the seed), `drive` records them,
`check` checks a `recording`, `metrics` measures it, `report` shows it. `local` runs a private installation
and injects faults; `demo` is the small demonstration on the same launcher and checker.
"""
