"""What `sweep.ensemble` needs of each job: a trained model, for serving."""

from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig

KEY = "sweep.ensemble"


def check_ensemble(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError where no SavedModel of a job will be there."""
    count = config.sweep.ensemble
    if count is None:
        return
    if config.action != "train":
        raise refusal(KEY, origins, "an ensemble is made of trained models: it goes with action=train", value=count)
    if not config.tracking.enabled or config.tracking.log_checkpoints == "none" or not config.ckpt.enabled:
        needed = "it needs the jobs' models for serving: it goes with ckpt, and tracking.log_checkpoints=last or best"
        raise refusal(KEY, origins, needed, value=count)
