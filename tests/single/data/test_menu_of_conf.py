"""conf/{data,model,optimizer}: every file composes and names arguments that its target takes."""

import inspect
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_method, instantiate
from omegaconf import OmegaConf

from parallax_runner.data import linear

CONF = Path(__file__).parents[3] / "conf"
PRIMARY = f"""
defaults: [data: stdlib, optimizer: adagrad, model: lm, _self_]
train: {{seed: 7}}
hydra: {{searchpath: ["file://{CONF}"]}}
"""
KERAS_MODELS = {"dlrm_keras", "tabular", "two_tower"}
# Keys of the model group that are no arguments of a Keras model.
OWN_KEYS = {"groups", "labels", "sample_weight", "sparse_updates", "validation_metrics"}
OF_THE_ACTION = {"evaluated_part", "reads_rows"}  # arguments of a data function that follow from the action


@pytest.fixture
def composed(tmp_path):
    """Return a function that composes the three groups, listed in the primary configuration's order."""
    (tmp_path / "primary.yaml").write_text(PRIMARY, encoding="utf-8")

    def compose_with(*overrides):
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            return compose("primary", list(overrides))

    return compose_with


def choices(group):
    """Without what `parallel_run` and `fit` choose: a script brings the model and the data."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem not in ("script", "fit"))


def test_defaults(composed):
    config = composed()
    assert config.data._target_ == "parallax_runner.data.stdlib.load"
    assert config.data.seed == 7
    assert config.model.vocab_size == config.data.vocab_size == 40000
    assert composed("data.vocab_size=123").model.vocab_size == 123


def test_simple_brings_its_data_and_optimizer(composed):
    config = composed("model=simple")
    assert config.data._target_ == "parallax_runner.data.linear.load"
    assert config.optimizer._target_.endswith(".GradientDescentOptimizer")
    assert config.model == {"_target_": "models.simple.build"}


def test_command_line_wins_over_what_a_model_brings(composed):
    config = composed("data=text", "data.path=corpus.txt", "optimizer=adam", "model=simple")
    assert config.data._target_ == "parallax_runner.data.text.load"
    assert config.optimizer._target_.endswith(".AdamOptimizer")


@pytest.mark.parametrize("name", choices("data"))
def test_data_files_give_each_argument(composed, name):
    config = composed(f"data={name}")
    given = set(config.data) - {"_target_", "batch_size"}
    parameters = set(inspect.signature(get_method(config.data._target_)).parameters)
    assert given == parameters - OF_THE_ACTION
    assert config.data.batch_size >= 1


@pytest.mark.parametrize("name", choices("model"))
def test_model_files_give_each_argument(composed, name):
    config = composed(f"model={name}")
    parameters = set(inspect.signature(get_method(config.model._target_)).parameters)
    passed = set() if name in KERAS_MODELS else {"features", "optimizer"}
    passed |= {"table"} & parameters  # the data describes its columns
    assert (set(config.model) | passed) - {"_target_", *OWN_KEYS} == parameters


@pytest.mark.parametrize(("name", "data"), [("dlrm_keras", "clicks"), ("tabular", "table"), ("two_tower", "pairs")])
def test_keras_models_bring_their_data(composed, name, data):
    assert composed(f"model={name}").data == composed(f"data={data}").data


@pytest.mark.parametrize("name", choices("optimizer"))
def test_configured_parts_fit_together(composed, name):
    tf = pytest.importorskip("tensorflow.compat.v1")
    config = composed("model=simple", f"optimizer={name}", "data.examples=100")
    arguments = {key: value for key, value in config.data.items() if key != "batch_size"}
    dataset = instantiate(arguments)
    assert dataset.train_size == 100 and type(dataset) is type(linear.load(**without_target(arguments)))
    with tf.Graph().as_default(), tf.Session() as session:
        features = {key: tf.placeholder(feature.dtype, [8]) for key, feature in dataset.features.items()}
        model = instantiate(config.model, _partial_=True)(features, instantiate(config.optimizer))
        session.run(tf.global_variables_initializer())
        feeds = {features[key]: value for key, value in dataset.train_batch(0, 8).items()}
        first = session.run(model["loss"], feeds)
        for _ in range(20):
            session.run(model["train_op"], feeds)
        assert session.run(model["loss"], feeds) < first


def without_target(arguments):
    return {
        key: value for key, value in OmegaConf.to_container(OmegaConf.create(arguments)).items() if key != "_target_"
    }
