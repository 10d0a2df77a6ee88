import subprocess
import sys

from parallax_runner.track.tracker import NoTracker, Tracker


def test_no_tracker_is_a_tracker(tmp_path) -> None:
    tracker: Tracker = NoTracker()
    tracker.log_params({"a": {"b": 1}})
    tracker.log_metrics(1, {"train/loss": 0.5})
    tracker.log_sample({"system/cpu_utilization_percentage": 1.0})
    tracker.log_artifact(tmp_path)
    tracker.log_artifact(tmp_path, "plots")
    tracker.log_event("model", saved_model="x")
    tracker.set_tags({"a": 1})
    tracker.end("finished")
    assert tracker.run_id is None


def test_mlflow_is_imported_only_when_a_run_is_opened() -> None:
    code = (
        "import sys; import parallax_runner.track.journal_tracker, parallax_runner.driver.pipeline; "
        "print([name for name in ('mlflow', 'tensorflow', 'horovod') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
