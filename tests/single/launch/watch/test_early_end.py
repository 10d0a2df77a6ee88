"""A worker whose script has ended, and another that waits for it in a step."""

import pytest

from parallax_runner.errors import TrainingError
from parallax_runner.launch.control.activity import STARTING, Activity, Kind
from parallax_runner.launch.watch.early_end import Watch


def in_step(step: int) -> Activity:
    return Activity(Kind.STEP, step)


def test_a_step_that_can_never_end() -> None:
    watch = Watch()
    watch.on_alive(0, in_step(4))
    watch.on_leave(1, 3)
    with pytest.raises(
        TrainingError, match=r"script of worker 1 ended after step 3, and worker 0 is waiting for it in step 4"
    ):
        watch.on_alive(0, in_step(4))


@pytest.mark.parametrize("doing", [in_step(3), Activity(Kind.SAVING, 4), Activity(Kind.SCRIPT, 4), STARTING])
def test_what_can_end(doing: Activity) -> None:
    watch = Watch()
    watch.on_leave(1, 3)
    watch.on_alive(0, doing)
    with pytest.raises(TrainingError, match="worker 0 is waiting for it in step 5"):  # still watched
        watch.on_alive(0, in_step(5))


def test_who_has_left_as_well_waits_for_nobody() -> None:
    watch = Watch()
    watch.on_leave(1, 3)
    watch.on_leave(0, 4)
    watch.on_alive(0, in_step(4))
    with pytest.raises(TrainingError, match="script of worker 1 ended after step 3, and worker 2 is waiting for it"):
        watch.on_alive(2, in_step(4))
