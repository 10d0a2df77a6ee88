"""Checks the settings of `profile=steps` and `profile=range`."""

from __future__ import annotations

from parallax_runner.config.actions import action_of
from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal, written
from parallax_runner.config.origins import Origins
from parallax_runner.config.rules.choice_names import check_choice_name
from parallax_runner.config.schema import RunConfig


def check_profile(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the settings name steps or a worker that the run does not have."""
    profile = config.profile
    check_choice_name("profile", origins)
    if profile.name == "off":
        return
    if not action_of(config).can_be_profiled and not (profile.steps or profile.range):
        return  # the choice has no effect, so it needs no steps; steps that are given are still checked
    if profile.dir is None:
        raise refusal("profile.dir", origins, "expected a folder", hint="profile.dir=${run_dir}/profile")
    if profile.name == "steps":
        _check_steps(config, origins)
    else:
        _check_range(config, origins)
    workers = 1 if mode_of(config.comm).is_one_process else size_cluster(config).cluster.workers
    if profile.worker is not None and profile.worker >= workers:
        raise refusal(
            "profile.worker", origins, f"expected a rank of at most {workers - 1}, or null", value=profile.worker
        )


def _check_steps(config: RunConfig, origins: Origins) -> None:
    steps, last = config.profile.steps, config.train.steps
    if not steps:
        raise refusal("profile.steps", origins, "expected at least one step, as in profile.steps=[100,200]", value="[]")
    outside = [step for step in steps if step < 1 or (last is not None and step > last)]
    if outside:
        allowed = "of at least 1" if last is None else f"from 1 to train.steps={last}"
        expected = f"expected steps {allowed}, but found {outside[0]}"
        raise refusal("profile.steps", origins, expected, value=written(steps))


def _check_range(config: RunConfig, origins: Origins) -> None:
    bounds, last = config.profile.range, config.train.steps
    if len(bounds) != 2:
        expected = "expected the first step and the step after the last one, as in profile.range=[100,110]"
        raise refusal("profile.range", origins, expected, value=written(bounds))
    start, end = bounds
    if start >= end:
        expected = f"the range is empty, because its end {end} is not included"
        raise refusal(
            "profile.range", origins, expected, value=written(bounds), hint=f"profile.range=[{start},{start + 1}]"
        )
    if last is None and start < 1:  # the script itself decides when the run ends
        raise refusal("profile.range", origins, "expected a first step of at least 1", value=written(bounds))
    if last is not None and (start < 1 or end > last + 1):
        expected = f"expected steps from 1 to train.steps={last}, which means bounds from 1 to {last + 1}"
        raise refusal("profile.range", origins, expected, value=written(bounds))
