"""What docs/serving.md tells its reader to run and to send."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.free_port import pick_free_port
from tests.integration.runs import LAUNCH_SECS
from tests.shared import shared

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
SMALL = "train.steps=3 data.batch_size=8"


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block.replace("\\\n", " ") for block in found]


def started(command: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts a command in a process group of its own."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(cwd / "cache"),
    }
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(["bash", "-c", command], cwd=cwd, env=environment, start_new_session=True, **pipes)


def output_of(command: str, cwd: Path) -> str:
    process = started(command, cwd)
    told, _ = process.communicate(timeout=LAUNCH_SECS)
    assert process.returncode == 0, told
    return told


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run and the layout of the page's first commands."""

    def make(folder: Path) -> Path:
        lines = [f"u{number % 9},a|b,{number if number % 5 else ''},{number % 2}" for number in range(300)]
        (folder / "ratings.csv").write_text("\n".join(["user,tags,price,liked", *lines]) + "\n")
        train, copy = blocks("sh")[0].strip().splitlines()
        output_of(f"{train} {SMALL}\n{copy}", folder)
        return folder

    return shared(tmp_path_factory, "page_of_serving", make)


def answer(served: Path) -> np.ndarray:
    """What plain TensorFlow answers to the request of REST."""
    request = json.loads(blocks("json")[0])
    model = tf.saved_model.load(str(served / "served" / "ratings" / "1"))
    signature = model.signatures[request["signature_name"]]
    given = {
        name: tf.constant(request["inputs"][name], spec.dtype)
        for name, spec in signature.structured_input_signature[1].items()
    }
    assert given.keys() == request["inputs"].keys()
    return signature(**given)["output"].numpy()


def test_the_cli_of_tensorflow_shows_and_runs_the_model(served: Path) -> None:
    show, run = blocks("sh")[1].strip().splitlines()
    shown = output_of(show, served)
    assert re.findall(r"inputs\['(\w+)'\]", shown) == ["price", "tags", "user"]
    told = output_of(run, served).partition("Result for output key output:")[2]
    found = [float(number) for number in re.findall(r"\d+\.\d+", told)]
    np.testing.assert_allclose(found, answer(served)[:, 0], rtol=1e-5)


def test_the_requests_and_the_configuration_of_tensorflow_serving(served: Path) -> None:
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed")
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    config = text_format.Parse(blocks("proto")[0], model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("ratings", "/models/ratings")
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)
    request = type(names["request"]).FromString(names["request"].SerializeToString())
    loaded = tf.saved_model.load(str(served / "served" / model.name / "1"))
    signature = loaded.signatures[request.model_spec.signature_name]
    given = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
    np.testing.assert_array_equal(signature(**given)["output"], answer(served))


def test_mlflow_serves_and_loads_the_model(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    serve, ask = blocks("sh")[2:]
    port = str(pick_free_port())
    process = started(serve.replace("5001", port), served)
    try:
        told = asked_until_answered(ask.replace("5001", port), process, served)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    expected = answer(served)
    found = json.loads(told)["predictions"]
    np.testing.assert_allclose(np.ravel(found["output"]), expected[:, 0], rtol=1e-5)
    run_id = json.loads((served / "runs" / "first" / "summary.json").read_text())["mlflow_run_id"]
    # `mlflow.set_tracking_uri` would stay set for later tests.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{served / 'mlflow.db'}")
    signature = mlflow.tensorflow.load_model(f"runs:/{run_id}/model")
    user, tags = tf.constant(["u1", "new"]), tf.constant(["a|b", ""])
    np.testing.assert_array_equal(signature(user=user, tags=tags, price=tf.constant([3.5, 1.0]))["output"], expected)


def asked_until_answered(ask: str, process: subprocess.Popen[str], cwd: Path) -> str:
    deadline = time.monotonic() + LAUNCH_SECS
    while time.monotonic() < deadline and process.poll() is None:
        done = subprocess.run(["bash", "-c", ask], cwd=cwd, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        time.sleep(1)
    raise AssertionError("the server did not answer")
