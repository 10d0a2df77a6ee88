"""What is said of arguments that a model's, an optimizer's or the data's function does not take."""

from collections.abc import Iterator

import pytest
from hydra.core.hydra_config import HydraConfig

from parallax_runner.config.compose import Composer, Job
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import validated
from parallax_runner.errors import ConfigError
from parallax_runner.graph.build import build_graph, load_dataset


@pytest.fixture(autouse=True)
def _without_a_job() -> Iterator[None]:
    before = HydraConfig.instance().cfg
    yield
    HydraConfig.instance().cfg = before


def running(*overrides: str) -> RunConfig:
    """The configuration of a job that Hydra runs in this process."""
    job: Job = Composer().job([*overrides, "run_dir=nowhere", "comm=local"])
    hydra = job.config.copy()
    config = validated(job)
    HydraConfig.instance().set_config(hydra)
    return config


WRONG = {
    "model": (
        ("model=simple", "+model.dimm=3"),
        r"model.dimm=3 \(command line\): no such argument; models.simple.build takes features, optimizer",
    ),
    "Keras model": (
        ("model=two_tower", "+model.temprature=3"),
        r"model.temprature=3 \(command line\): no such argument; .*Did you mean model.temperature=3\?",
    ),
    "key of Keras models for a graph": (
        ("model=simple", "+model.labels=y"),
        r"model.labels=y \(command line\): no such argument; models.simple.build takes no arguments in addition",
    ),
    "optimizer": (
        ("model=simple", "+optimizer.momentun=0.9"),
        r"optimizer.momentun=0.9 \(command line\): no such argument; .*GradientDescentOptimizer takes learning_rate, ",
    ),
    "argument that is missing": (
        ("model=simple", "optimizer=momentum", "~optimizer.momentum"),
        r"optimizer._target_=\S*MomentumOptimizer \(.*momentum.yaml:2\): missing a required argument: 'momentum'",
    ),
    "value of the model": (
        ("model=lm", "data=zipf", "data.vocab_size=50", "model.num_sampled=0"),
        r"model.num_sampled=0 \(command line\): models.lm.build rejects this value at .*lm.py:\d+ .* less than minimum",
    ),
    "value that the message does not contain": (
        ("model=lm", "data=zipf", "data.vocab_size=50", "model.vocab_size=-3"),
        r"^model.vocab_size=-3 \(command line\): models.lm.build fails with this value at \S*lm.py:\d+ "
        r"\(embedding = tf.get_variable\(…\)\): \w+: .*; models.lm.build takes vocab_size, .* in addition to features",
    ),
    "one of two values": (
        ("model=lm", "data=zipf", "data.vocab_size=50", "model.embedding_size=-1", "model.num_units=8"),
        r"^model.embedding_size=-1 \(command line\), model.num_units=8 \(command line\): models.lm.build fails with o",
    ),
    "share of more than all": (
        ("model=lm", "data=zipf", "data.vocab_size=50", "model.num_sampled=8", "model.keep_prob=5"),
        r"model.keep_prob=5 \(command line\).*: models.lm.build (fails with|rejects) ",
    ),
    "no filters": (
        ("model=resnet", "model.filters=0"),
        r"^model.filters=0 \(command line\): models.resnet.build fails with this value at \S*resnet.py:\d+ ",
    ),
    "value of the optimizer, in another notation": (
        ("model=simple", "optimizer=ftrl", "optimizer.learning_rate_power=1"),
        r"^optimizer.learning_rate_power=1 \(command line\): \S*FtrlOptimizer rejects this value at \S*ftrl.py:\d+ .*"
        r"1.000000 needs .*; \S*FtrlOptimizer takes learning_rate, learning_rate_power=-0.5, ",
    ),
    "arguments by position": (
        ("model=simple", "+model._args_=[1,2,3]"),
        r"model._args_=\[1, 2, 3\] \(command line\): the runner passes the positional arguments itself; pass each arg",
    ),
    "data": (
        ("model=simple", "+data.exampels=3"),
        r"data.exampels=3 \(command line\): no such argument; .*Did you mean data.examples=3\?",
    ),
    "data of a module": (
        ("model=simple", "data._target_=os.path"),
        r"data._target_=os.path \(command line\): expected a function or class, got a value of type module",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_with_its_place(name: str) -> None:
    overrides, expected = WRONG[name]
    config = running(*overrides)
    with pytest.raises(ConfigError, match=expected):
        build_graph(config, load_dataset(config))


def test_an_error_that_names_no_argument_is_not_blamed_on_one() -> None:
    from parallax_runner.graph.arguments import blamed

    content = {"_target_": "mine.build", "units": 3, "name": "x"}
    for message in ("units must be positive", "3 is odd", "subunits=3", "units=30", "the name of 3 things"):
        with pytest.raises(ValueError, match=message), blamed("model", content):
            raise ValueError(message)
    expected = r"model.units=3 \(default\): mine.build rejects this value at .*: units=3"
    with pytest.raises(ConfigError, match=expected), blamed("model", content):
        raise ValueError("units=3 are too few")


def test_an_error_of_the_code_is_not_blamed_on_what_the_user_set() -> None:
    from parallax_runner.graph.arguments import blamed

    running("model=lm", "model.num_units=8")
    content = {"_target_": "mine.build", "num_units": 8, "keep_prob": 1.0}
    with pytest.raises(NameError, match="nowhere"), blamed("model", content):
        raise NameError("nowhere")
    expected = r"^model.num_units=8 \(command line\): mine.build fails with this value"
    with pytest.raises(ConfigError, match=expected), blamed("model", content):
        raise ValueError("odd")
    running("model=lm")
    with pytest.raises(ValueError, match="odd"), blamed("model", content):
        raise ValueError("odd")
