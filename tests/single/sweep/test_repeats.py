"""The mean and the spread over jobs that repeat a training."""

from parallax_runner.sweep.repeats import as_json, described, repeats
from parallax_runner.sweep.results import Result


def result(objective: float | None, *overrides: str, rank: int | None = 1) -> Result:
    return Result(rank, "job", "finished", objective, None, None, 9, "run", overrides, None, None, "auc", "maximize")


def test_folds_are_one_group() -> None:
    found = repeats([result(0.1 * fold, "data.train=a.csv", f"data.partition.fold={fold}") for fold in (1, 2, 3)])
    (group,) = found
    assert (group.jobs, round(group.mean, 9), round(group.standard_deviation, 9)) == (3, 0.2, 0.1)
    assert described(found, "auc") == ["mean auc of 3 jobs: 0.2, standard deviation 0.1"]
    assert as_json(found)[0]["overrides"] == ("data.train=a.csv",)


def test_other_keys_make_other_groups() -> None:
    results = [result(number, f"comm={comm}", f"train.seed={number}") for comm in ("mpi", "ps") for number in (1, 3)]
    assert described(repeats(results), "loss") == [
        "comm=mpi: mean loss of 2 jobs: 2, standard deviation 1.4",
        "comm=ps: mean loss of 2 jobs: 2, standard deviation 1.4",
    ]


def test_single_and_unranked_jobs_have_no_mean() -> None:
    assert repeats([result(1.0, "comm=mpi"), result(2.0, "comm=ps"), result(3.0, "comm=ps", rank=None)]) == []
