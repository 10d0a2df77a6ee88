"""The keys of group `train` that other settings restrict."""

from parallax_runner.config.actions import action_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.origins import Origins
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.targets import FIT, SCRIPT


def check_steps(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the number of steps is missing. A script decides it by itself."""
    is_script = config.model["_target_"] == SCRIPT
    if config.train.steps is None and not is_script:
        raise refusal("train.steps", origins, "expected an integer, at least 1")


def check_skipped_steps(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a step whose loss is not finite cannot be skipped by all workers at once."""
    if config.train.on_nan != "skip":
        return
    if not config.comm.sync:
        needed = "all workers must agree to skip a step, which needs comm.sync=true"
        raise refusal("train.on_nan", origins, needed, value="skip")
    if config.model["_target_"] == SCRIPT:
        needed = "a script defines its own steps and may have several losses; use skip only with a model"
        raise refusal("train.on_nan", origins, needed, value="skip")


def check_accumulation(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if a step is divided into passes, and a script has the batches or the optimizer."""
    steps, target = config.train.accumulate_steps, config.model["_target_"]
    if steps == 1:
        return
    if target == SCRIPT:
        needed = "a script feeds its own batches; accumulate gradients in the script"
        raise refusal("train.accumulate_steps", origins, needed, value=steps)
    if target == FIT:
        needed = f"a Keras model accumulates in its optimizer; set its argument gradient_accumulation_steps={steps}"
        raise refusal("train.accumulate_steps", origins, needed, value=steps)


def check_mixed_precision(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError for mixed precision where something else sets the precision, or needs the full one."""
    if config.train.mixed_precision == "off":
        return
    if config.model["_target_"] == SCRIPT:
        needed = "a script sets it in the sess_config of parallax.Config: auto_mixed_precision_onednn_bfloat16"
    elif config.model["_target_"] == FIT:
        needed = 'Keras has policies; call keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model'
    elif action_of(config).repeats_steps:
        needed = f"action={config.action} finds faults by their size, and rounding to bfloat16 is larger; omit this key"
    else:
        return
    raise refusal("train.mixed_precision", origins, needed, value=config.train.mixed_precision)
