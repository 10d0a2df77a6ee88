"""`optimizer=` beside a model with its own optimizer is refused wherever it is written; the default is not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from parallax_runner.config.compose import Composer, Job
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import validated
from parallax_runner.driver.own_optimizer import without_optimizer
from parallax_runner.errors import ConfigError
from parallax_runner.graph.build import build_graph, load_dataset
from parallax_runner.graph.single_device_graph import SingleDeviceGraph

JOB = ("run_dir=nowhere", "comm=local")
SMALL = ("data.queries=30", "data.items=20", "data.examples=100", "data.batch_size=4")
FILES = {
    "experiment/chosen.yaml": "# @package _global_\ndefaults:\n  - override /model: two_tower\n"
    "  - override /optimizer: adagrad\n",
    "experiment/changed.yaml": "# @package _global_\ndefaults:\n  - override /model: two_tower\n\n"
    "optimizer:\n  learning_rate: 0.2\n",
    "experiment/clipped.yaml": "# @package _global_\ndefaults:\n  - override /model: two_tower\n"
    "update:\n  clip_norm: 2\n",
    "model/mine.yaml": "defaults:\n  - override /data@_global_.data: pairs\n"
    "  - override /optimizer@_global_.optimizer: adagrad\n  - _self_\n_target_: models.two_tower.make_model\n",
    "own.yaml": "defaults:\n  - config\n  - override optimizer: adagrad\n  - override model: two_tower\n  - _self_\n",
}


@pytest.fixture(autouse=True)
def _without_a_job() -> Iterator[None]:
    before = HydraConfig.instance().cfg
    yield
    HydraConfig.instance().cfg = before


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> SingleDeviceGraph:
    run_dir = tmp_path_factory.mktemp("run")  # gets TensorFlow's log
    config = validated(Composer().job(["model=two_tower", *SMALL, *JOB, f"run_dir={run_dir}"]))
    return build_graph(config, load_dataset(config))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configuration, relative to which messages name files."""
    for name, text in FILES.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf"


def begun(job: Job) -> RunConfig:
    """Returns the configuration of a job that Hydra runs in this process."""
    hydra = job.config.copy()
    config = validated(job)
    HydraConfig.instance().set_config(hydra)
    return config


def refused(config: RunConfig, single: SingleDeviceGraph) -> str:
    with pytest.raises(ConfigError) as error:
        without_optimizer(config, single)
    return str(error.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["optimizer=adagrad"], "optimizer=adagrad (command line)"),
        (["optimizer=adam"], "optimizer=adam (command line)"),
        (["optimizer.learning_rate=0.1"], "optimizer.learning_rate=0.1 (command line)"),
        (["+optimizer.use_locking=true"], "+optimizer.use_locking=true (command line)"),
        (["optimizer={learning_rate:0.1}"], "optimizer={learning_rate:0.1} (command line)"),
        (["~optimizer.initial_accumulator_value"], "~optimizer.initial_accumulator_value (command line)"),
        (["optimizer=adam", "optimizer.learning_rate=1"], "optimizer.learning_rate=1 (command line)"),
    ],
)
def test_a_setting_on_the_command_line(single: SingleDeviceGraph, overrides: list[str], told: str) -> None:
    message = refused(begun(Composer().job(["model=two_tower", *JOB, *overrides])), single)
    assert message == (
        f"{told}: model._target_=models.two_tower.make_model creates a Keras model or a training step, which has its "
        "own optimizer; remove this setting, and add a parameter to the model's function for each value that you want "
        "to set (model.learning_rate=…)"
    )


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("update.clip_norm=1", "clipnorm=… of a Keras optimizer"),
        ("update.global_clip_norm=1", "global_clipnorm=… of a Keras optimizer"),
        ("update.weight_decay=0.1", "weight_decay=… of a Keras optimizer"),
        ("update.schedule.warmup_steps=9", "learning_rate=keras.optimizers.schedules.… of a Keras optimizer"),
        ("update={clip_value:2}", "the same"),
    ],
)
def test_a_setting_of_the_update(single: SingleDeviceGraph, override: str, word: str) -> None:
    message = refused(begun(Composer().job(["model=two_tower", *JOB, override])), single)
    assert message == (
        f"{override} (command line): model._target_=models.two_tower.make_model creates a Keras model or a training "
        f"step, which has its own optimizer; remove this setting, and set {word} where the optimizer is created"
    )


def test_the_precision_of_a_keras_model(tmp_path: Path) -> None:
    lines = ["model=two_tower", *SMALL, *JOB, f"run_dir={tmp_path}", "train.mixed_precision=bfloat16"]
    config = begun(Composer().job(lines))
    assert refused(config, build_graph(config, load_dataset(config))) == (
        "train.mixed_precision=bfloat16: a Keras model has a policy for its precision; remove this setting, and call "
        'keras.mixed_precision.set_global_policy("mixed_bfloat16") in the model\'s function'
    )


def test_the_passes_of_a_keras_model(tmp_path: Path) -> None:
    lines = ["model=two_tower", *SMALL, *JOB, f"run_dir={tmp_path}", "train.accumulate_steps=2"]
    config = begun(Composer().job(lines))
    with pytest.raises(ConfigError) as error:
        build_graph(config, load_dataset(config))
    assert str(error.value) == (
        "train.accumulate_steps=2: a compiled Keras model accumulates gradients in its optimizer; remove this setting, "
        "and give the optimizer gradient_accumulation_steps=2"
    )


@pytest.mark.parametrize(
    ("name", "override", "told"),
    [
        ("config", "experiment=chosen", "optimizer=adagrad (conf/experiment/chosen.yaml:4): "),
        ("config", "experiment=clipped", "update.clip_norm=2 (conf/experiment/clipped.yaml:5): "),
        ("config", "experiment=changed", "optimizer.learning_rate=0.2 (conf/experiment/changed.yaml:6): "),
        ("config", "model=mine", "optimizer=adagrad (conf/model/mine.yaml:3): "),
        ("own", "train.steps=1", "optimizer=adagrad (conf/own.yaml:3): "),
    ],
)
def test_a_setting_in_a_file(single: SingleDeviceGraph, folder: Path, name: str, override: str, told: str) -> None:
    composer = Composer(config_name=name, config_dir=str(folder))
    assert refused(begun(composer.job([override, *JOB])), single).startswith(told)


def test_a_setting_in_each_job_of_a_sweep(single: SingleDeviceGraph) -> None:
    lines = ["model=two_tower", *JOB, "optimizer=adagrad,adam"]
    told = [refused(begun(job), single) for job in Composer().jobs(lines, multirun=True)]
    assert [one.partition(":")[0] for one in told] == [
        "optimizer=adagrad (command line)",
        "optimizer=adam (command line)",
    ]


@pytest.mark.parametrize("overrides", [["model=two_tower"], ["experiment=two_tower"], ["experiment=dlrm_keras"]])
def test_a_default_that_nobody_chose_is_left_out(single: SingleDeviceGraph, overrides: list[str]) -> None:
    config = begun(Composer().job([*overrides, *JOB, "model.optimizer=adam"]))
    assert config.optimizer
    assert without_optimizer(config, single).optimizer == {}


def test_other_models_keep_the_optimizer(tmp_path: Path) -> None:
    config = begun(Composer().job(["model=simple", *JOB, "optimizer=adam", f"run_dir={tmp_path}"]))
    assert without_optimizer(config, build_graph(config, load_dataset(config))) == config
