"""The `_target_` of a model that comes from a script instead of a model's function."""

# The `_target_` in `conf/model/script.yaml`, for a script that calls `parallel_run`.
SCRIPT = "parallax_runner.api.script.start_it_plainly"
# The `_target_` in `conf/model/fit.yaml`, for a script that calls `fit`.
FIT = "parallax_runner.api.fit.start_it_plainly"
