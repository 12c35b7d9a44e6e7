"""Up to when a stage is measured: where its limit was lifted to be done sooner, the figure was taken before.

In: a recording. Out: an instant.
"""

from turnstile.stress.recording import Recording


def measured_until(recording: Recording) -> int:
    """Return when the measured part of a stage was over."""
    if recording.stage.drain_without_limit_after is None:
        return recording.ended_at
    return min((change.asked_at for change in recording.limit_changes), default=recording.ended_at)
