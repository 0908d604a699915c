"""Steps are counted, and a line that begins one is a line like any other."""

from __future__ import annotations

from deploykit.system.jobs import Begun, Steps, prefixed


def test_steps_are_counted_and_may_begin_again() -> None:
    told: list[str] = []
    steps = Steps(("deciding", "writing"), told.append)
    for name in ("deciding", "writing", "deciding", "no step of these"):
        steps.begin(name)
    assert told == ["[1/2] deciding", "[2/2] writing", "[1/2] deciding"]
    assert all(isinstance(line, Begun) for line in told)


def test_a_step_of_one_piece_of_work_among_several_stays_a_step() -> None:
    told: list[str] = []
    tell = prefixed("sm8650", told.append)
    tell(Begun.of(1, 3, "deciding"))
    tell("planning")
    assert told == ["sm8650: [1/3] deciding", "sm8650: planning"]
    assert [isinstance(line, Begun) for line in told] == [True, False]
