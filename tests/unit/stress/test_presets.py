"""From what is asked to stages: a pure function, in which each preset answers its question."""

from dataclasses import replace

import pytest

from turnstile.stress.asked import Asked, Preset
from turnstile.stress.mix import DurationMix
from turnstile.stress.presets import stages_of
from turnstile.stress.stage import FaultKind, Purpose, Stage

_ASKED = Asked(
    preset=None,
    local=True,
    seed=7,
    actions=10,
    limit=4,
    executions=None,
    mix=None,
    keys=0,
    submitters=4,
    rate=None,
    faults=(),
    depths=None,
    key_counts=None,
    duration_seconds=3600.0,
    executors=2,
    workers=2,
    lease_seconds=15.0,
)


def _of(stages: tuple[Stage, ...], purpose: Purpose) -> list[Stage]:
    return [stage for stage in stages if stage.purpose is purpose]


def test_the_default_run_is_the_load_that_was_asked_for_and_all_five_figures() -> None:
    stages = stages_of(_ASKED)
    assert stages[0].load.executions == 20_000
    assert str(stages[0].load.mix) == "70% 0s, 25% 20ms, 5% 500ms"
    assert {stage.purpose for stage in stages} == set(Purpose)
    assert {stage.limit for stage in _of(stages, Purpose.THROUGHPUT)} == {4, None}
    assert [stage.limit for stage in _of(stages, Purpose.HAND_OVER)] == [1]
    assert {fault.kind for stage in stages for fault in stage.faults} == {
        FaultKind.KILL_WORKER,
        FaultKind.KILL_EXECUTOR,
    }


def test_what_is_asked_for_is_what_the_load_is() -> None:
    mix = DurationMix.always(0.01)
    first = stages_of(replace(_ASKED, executions=50, mix=mix, keys=3, submitters=2, limit=2, actions=5))[0]
    load = first.load
    assert (load.executions, load.mix, load.keys, load.submitters, load.actions) == (50, mix, 3, 2, 5)
    assert first.limit == 2


@pytest.mark.parametrize("preset", [None, *Preset])
def test_stages_have_names_of_their_own_that_can_name_a_folder(preset: Preset | None) -> None:
    names = [stage.name for stage in stages_of(replace(_ASKED, preset=preset))]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name.islower() for name in names)


@pytest.mark.parametrize("preset", [None, *(preset for preset in Preset if preset is not Preset.RECOVERY)])
def test_nothing_is_broken_in_an_installation_of_others(preset: Preset | None) -> None:
    assert not any(stage.faults for stage in stages_of(replace(_ASKED, preset=preset, local=False)))


@pytest.mark.parametrize("preset", [None, *Preset])
def test_faults_come_while_there_is_load(preset: Preset | None) -> None:
    asked = replace(_ASKED, preset=preset)
    if preset in (None, Preset.SOAK):
        asked = replace(asked, faults=tuple(FaultKind))
    for stage in stages_of(asked):
        if stage.faults:
            assert stage.load.rate is not None
            seconds = stage.load.executions / stage.load.rate
            assert all(fault.at_seconds + fault.lasting_seconds < seconds for fault in stage.faults)


def test_a_load_under_faults_leaves_slots_free_to_work_off_what_piles_up() -> None:
    for preset in (None, Preset.FIFO, Preset.RECOVERY):
        for stage in stages_of(replace(_ASKED, preset=preset)):
            if stage.faults and stage.limit is not None:
                assert stage.load.rate is not None
                busy = stage.load.rate * stage.load.mix.mean_seconds
                assert busy <= 0.51 * stage.limit * stage.load.queues


def test_depths_and_keys_are_those_that_were_asked_for() -> None:
    depths = stages_of(replace(_ASKED, preset=Preset.DEPTH, depths=(100, 5000)))
    assert [stage.load.executions for stage in depths] == [100, 5000]
    assert all(stage.all_wait_first and stage.load.queues == 1 for stage in depths)
    keys = stages_of(replace(_ASKED, preset=Preset.KEYS, key_counts=(1, 10_000)))
    assert [stage.load.queues for stage in keys] == [1, 10_000]
    assert keys[1].load.executions >= 20_000


def test_the_full_depth_preset_goes_to_a_million() -> None:
    assert [stage.load.executions for stage in stages_of(replace(_ASKED, preset=Preset.DEPTH))][
        -1
    ] == 1_000_000


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    asked = replace(_ASKED, faults=tuple(FaultKind))
    assert stages_of(asked) == stages_of(asked)
    assert stages_of(asked) != stages_of(replace(asked, seed=8))


def test_recovery_breaks_one_thing_after_the_other() -> None:
    (stage,) = stages_of(replace(_ASKED, preset=Preset.RECOVERY))
    assert {fault.kind for fault in stage.faults} == set(FaultKind) - {FaultKind.CHANGE_LIMIT}
    ends = [fault.at_seconds + fault.lasting_seconds for fault in stage.faults]
    starts = [fault.at_seconds for fault in stage.faults]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
