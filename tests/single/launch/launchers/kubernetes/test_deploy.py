"""The image, the examples and the commands of docs/kubernetes.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from parallax_runner.config.compose import Composer
from parallax_runner.driver.check import validated
from parallax_runner.launch.launchers.kubernetes.names import volumes_of
from parallax_runner.launch.launchers.kubernetes.pod_template import GROUP, RUN_LABEL, USER
from tests.single.launch.launchers.kubernetes.test_manifest_schemas import VERSIONS

ROOT = Path(__file__).parents[5]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
EXAMPLES = ("claim.yaml", "mlflow.yaml")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def copied() -> set[str]:
    """What the image takes from the checkout."""
    found = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return {name for line in found for name in line.split()}


def test_the_image_contains_what_the_set_up_needs() -> None:
    assert all((ROOT / name).exists() for name in copied())
    setup = (ROOT / "scripts" / "setup").read_text()
    for needed in ("requirements.lock", "requirements-gpu.lock", "pyproject.toml", "hatch_build.py"):
        assert needed in setup and needed in copied()
    allowed = re.findall(r"^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert set(allowed) == copied()


def test_the_image_is_that_of_a_user_without_root() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == [f"{USER}:{GROUP}"]
    assert f"--gid {GROUP} run && useradd --uid {USER} --gid {GROUP}" in DOCKERFILE
    (version,) = re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)
    assert version in ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_have_no_unknown_and_no_wrong_field(name: str, version: str) -> None:
    for content in documents(name):
        kubernetes_validate.validate(content, version, strict=True)


def test_the_examples_fit_to_the_commands_of_the_page() -> None:
    (claim,) = documents("claim.yaml")
    by_kind = {one["kind"]: one for one in documents("mlflow.yaml")}
    labels = by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, selector in (("Service", "selector"), ("NetworkPolicy", "podSelector")):
        found = by_kind[kind]["spec"][selector]
        assert found.get("matchLabels", found) == labels
    (source,) = by_kind["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert source["podSelector"]["matchExpressions"] == [{"key": RUN_LABEL, "operator": "Exists"}]
    service = by_kind["Service"]
    address = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert f"tracking.uri={address} " in PAGE
    assert f"--allowed-hosts={address.removeprefix('http://')}," in (DEPLOY / "mlflow.yaml").read_text()
    for command in runs():
        config = validated(Composer().job(command))
        assert {volume.claim for volume in volumes_of(config.cluster)} == {claim["metadata"]["name"]}


def runs() -> list[list[str]]:
    """The settings of the page's commands that submit a run."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", "").splitlines()]
    found = [shlex.split(line)[3:] for line in lines if line.startswith("python -m parallax_runner ")]
    assert len(found) == 2
    return found


def test_the_settings_of_the_page_are_keys() -> None:
    named = set(re.findall(r"`\+?(cluster\.[a-z_]+)", PAGE))
    keys = {f"cluster.{name}" for name in validated(Composer().job(runs()[0])).cluster.__dataclass_fields__}
    assert named <= keys and len(named) > 15
