"""The objects that are submitted against the schemas of the API server, and against rules that no schema has."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pydantic
import pytest
from kubeflow_trainer_api import models

from parallax_runner.launch.launchers.kubernetes import formats
from parallax_runner.launch.launchers.kubernetes.manifest import Form
from parallax_runner.launch.launchers.kubernetes.names import secret_name
from parallax_runner.launch.launchers.kubernetes.objects import amount_of, secret_of
from parallax_runner.plan.plan import Plan
from tests.single.launch.launchers.kubernetes.jobs import (
    ELASTIC,
    EVERYTHING,
    PLAN,
    WITHOUT_SERVERS,
    job_specs,
    manifest,
    objects,
    templates,
)
from tests.single.launch.launchers.kubernetes.published_jobset import expect_published

VERSIONS = ("1.31", "1.34", "1.37")
CASES = [
    pytest.param((), id="defaults"),
    pytest.param(EVERYTHING, id="everything"),
    pytest.param(("cluster.volumes=[a:/a]", "cluster.workers=40"), id="many"),
    pytest.param(ELASTIC, id="elastic"),
]
MOST_OF_HOST_NAME = 63
OF_A_JOB = ["spec", "replicatedJobs", 1, "template", "spec"]


def validated(content: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(content, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("given", CASES)
def test_objects_have_no_unknown_and_no_wrong_field(given: tuple[str, ...], version: str) -> None:
    for content in (*objects(Form.JOB, *given), *objects(Form.JOBSET, *given)[1:], secret_of("a", "b")):
        validated(content, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("given", CASES)
def test_the_jobs_of_a_jobset_are_jobs(given: tuple[str, ...], version: str) -> None:
    for spec in job_specs(objects(Form.JOBSET, *given)[0]):
        validated({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}, version)


def test_a_wrong_field_is_found() -> None:
    """Otherwise the tests above could not fail."""
    (job, *_) = objects(Form.JOB)
    job["spec"]["completion"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validated(job, VERSIONS[0])


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("plan", [PLAN, WITHOUT_SERVERS], ids=["with_servers", "without_servers"])
def test_a_jobset_is_what_its_published_schema_permits(given: tuple[str, ...], plan: Plan) -> None:
    (jobset, *_) = objects(Form.JOBSET, *given, plan=plan)
    expect_published(jobset)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "sucessPolicy"], {}),
        (["spec", "successPolicy", "operator"], "Every"),
        (["spec", "ttlSecondsAfterFinished"], -1),
        (["spec", "failurePolicy", "maxRestarts"], 2**31),
        ([*OF_A_JOB, "completion"], 1),
        (["spec", "replicatedJobs", 1, "name"], "driver"),
        ([*OF_A_JOB, "podFailurePolicy", "rules", 0, "onPodConditions", 0], {"type": "DisruptionTarget"}),
        ([*OF_A_JOB, "podFailurePolicy", "rules", 1, "onExitCodes", "values"], [137, 137]),
    ],
)
def test_what_the_published_schema_refuses_is_found(path: list[str | int], value: Any) -> None:
    """Otherwise the test above could not fail."""
    (jobset, *_) = objects(Form.JOBSET)
    *parents, last = path
    parent: Any = jobset
    for step in parents:
        parent = parent[step]
    parent[last] = value
    with pytest.raises(jsonschema.ValidationError):
        expect_published(jobset)


@functools.cache
def _model(name: str) -> type[pydantic.BaseModel]:
    found: type[pydantic.BaseModel] = getattr(models, name)
    return found


def unknown_fields(content: Any, model: Any, path: str = "") -> Iterator[str]:
    """The fields of an object that its model does not have. The published models themselves ignore such fields."""
    if isinstance(content, list):
        for one in content:
            yield from unknown_fields(one, model, path)
        return
    if not isinstance(content, dict) or not isinstance(model, type) or not issubclass(model, pydantic.BaseModel):
        return
    by_name = {field.alias or name: field for name, field in model.model_fields.items()}
    for name, value in content.items():
        if name not in by_name:
            yield f"{path}.{name}"
            continue
        yield from unknown_fields(value, _model_in(by_name[name].annotation), f"{path}.{name}")


def _model_in(annotation: Any) -> Any:
    """The model in an annotation such as `Optional[List[Model]]`, or None."""
    if isinstance(annotation, type):
        return annotation
    return next(filter(None, map(_model_in, getattr(annotation, "__args__", ()))), None)


@pytest.mark.parametrize("given", CASES)
def test_a_jobset_is_one_of_the_published_models(given: tuple[str, ...]) -> None:
    (jobset, *_) = objects(Form.JOBSET, *given)
    model = _model("JobsetV1alpha2JobSet")
    assert list(unknown_fields(jobset, model)) == []
    for template in templates(jobset).values():
        # The published models read no quantity: they expect an object in place of text.
        del template["spec"]["containers"][0]["resources"]
    model.model_validate(jobset, strict=True)


def test_a_wrong_field_of_a_jobset_is_found() -> None:
    """Otherwise the test above could not fail."""
    (jobset, *_) = objects(Form.JOBSET)
    jobset["spec"]["sucessPolicy"] = jobset["spec"].pop("successPolicy")
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 1
    assert list(unknown_fields(jobset, _model("JobsetV1alpha2JobSet"))) == [
        ".spec.replicatedJobs.template.spec.completion",
        ".spec.sucessPolicy",
    ]


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("form", Form)
def test_names_are_valid_and_short_enough(form: Form, given: tuple[str, ...]) -> None:
    made = objects(form, *given, "cluster.job_name=" + "x" * formats.MOST_OF_JOB_NAME)
    name = made[0]["metadata"]["name"]
    assert all(formats.is_job_name(one["metadata"]["name"]) for one in made)
    roles = ["-worker-0"] if form is Form.JOBSET else [""]
    # A pod's name has a random suffix, and its host name has none.
    assert all(len(f"{name}{role}-99999-abcde") <= MOST_OF_HOST_NAME for role in roles)
    for template in templates(made[0]).values():
        assert formats.is_label_value(next(iter(template["metadata"]["labels"].values())))
        variables = [one["name"] for one in template["spec"]["containers"][0]["env"]]
        assert len(variables) == len(set(variables))


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("form", Form)
def test_what_a_pod_uses_exists(form: Form, given: tuple[str, ...]) -> None:
    (job, *others) = objects(form, *given)
    for template in templates(job).values():
        spec = template["spec"]
        (container,) = spec["containers"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert volumes == {mount["name"] for mount in container["volumeMounts"]}
        assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(volumes)
        references = [one["valueFrom"].get("secretKeyRef") for one in container["env"] if "valueFrom" in one]
        own = secret_name(job["metadata"]["name"])
        assert {"name": own, "key": "secret"} in references
        assert list(secret_of(job["metadata"]["name"], "b")["data"]) == ["secret"]
    if form is Form.JOB:
        assert others[0]["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    else:
        targets = job["spec"]["successPolicy"]["targetReplicatedJobs"]
        assert set(targets) <= {one["name"] for one in job["spec"]["replicatedJobs"]}


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("form", Form)
def test_numbers_fit_together(form: Form, given: tuple[str, ...]) -> None:
    (job, *_) = objects(form, *given)
    specs = job_specs(job)
    assert sum(spec["completions"] for spec in specs) == sum(group.count for group in manifest(form, *given).groups)
    for spec in specs:
        assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] > 0
        resources = spec["template"]["spec"]["containers"][0]["resources"]
        for name, limit in resources["limits"].items():
            assert formats.is_quantity(limit) and amount_of(resources["requests"][name]) <= amount_of(limit)
            # A GPU cannot be requested without an equal limit.
            assert "/" not in name or resources["requests"][name] == limit
        assert 0 not in spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"], "In, NotIn: 0 is no failure"
