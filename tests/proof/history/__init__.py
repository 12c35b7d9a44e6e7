"""The history checker: what cannot lie is recorded (`log`, `runs`, `tap`), then judged (`verdict`)."""
