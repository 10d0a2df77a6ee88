"""The predicted memory of processes, and the limit that it is compared with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.config.compose import Composer
from parallax_runner.config.schema import RunConfig
from parallax_runner.driver.check import checked_job
from parallax_runner.driver.memory_note import with_memory
from parallax_runner.launch.launchers import predicted_memory as requested
from parallax_runner.plan.plan import Plan, Shard, VariablePlan, of_json, to_json
from parallax_runner.plan.process_memory import ProcessMemory
from parallax_runner.planning.memory import (
    DRIVER_BYTES,
    LEAST_JOINT_SAVE_BYTES,
    OVERHEAD,
    SERVER_BYTES,
    WORKER_BYTES,
    predicted_memory,
)
from parallax_runner.planning.plan_table import memory_table
from parallax_runner.process.memory_limit import MemoryLimit, memory_limit

GB = 1 << 30
ROWS = 1000


def table(route: str, *, gradient: str = "sparse", servers: int = 0, size_bytes: int = GB) -> VariablePlan:
    """A variable with one slot, in a shard on each server."""
    shards = tuple(Shard(server, ROWS // servers, server, servers) for server in range(servers))
    return VariablePlan(
        "table", (ROWS, 1), "float32", size_bytes, gradient, route, shards, ("table/Adagrad",), None, ""
    )


def plan(*variables: VariablePlan, workers: int = 4, servers: int = 0) -> Plan:
    return Plan("mine", workers, servers, "", variables, ())


def by_role(memory: tuple[ProcessMemory, ...]) -> dict[str, ProcessMemory]:
    return {one.role: one for one in memory}


def test_a_worker_has_its_own_rows_and_slots() -> None:
    found = by_role(predicted_memory(plan(table("alltoall"))))
    own_bytes = WORKER_BYTES + OVERHEAD * 2 * GB / 4
    assert found["worker"].count == 3
    assert found["worker"].start_bytes == found["worker"].step_bytes == pytest.approx(own_bytes, abs=1)
    assert found["worker"].save_bytes - found["worker"].step_bytes == GB // 4, "its rows of the largest variable"
    assert found["worker 0"].peak_bytes == found["worker"].peak_bytes
    assert found["driver"].peak_bytes == DRIVER_BYTES


def test_a_save_copies_what_ckpt_copy_bytes_permits() -> None:
    found = by_role(predicted_memory(plan(table("alltoall")), copy_bytes=3 * GB))
    assert found["worker"].save_bytes - found["worker"].step_bytes == 3 * GB
    little = by_role(predicted_memory(plan(table("alltoall")), copy_bytes=0))
    assert little["worker"].save_bytes - little["worker"].step_bytes == LEAST_JOINT_SAVE_BYTES
    assert all(one.save_bytes <= one.step_bytes for one in predicted_memory(plan(table("alltoall")), saves=False))


def test_dense_variables_are_whole_on_each_worker_and_copied_by_the_chief() -> None:
    found = by_role(predicted_memory(plan(table("allreduce", gradient="dense"))))
    assert found["worker"].step_bytes == pytest.approx(WORKER_BYTES + OVERHEAD * 2 * GB + 2 * GB, abs=1)
    assert found["worker"].save_bytes == found["worker"].step_bytes
    assert found["worker 0"].save_bytes - found["worker 0"].step_bytes == 2 * 2 * GB


@pytest.mark.parametrize(("servers", "copies"), [(1, 3), (2, 1)])
def test_servers_have_the_rows_of_their_shards(servers: int, copies: int) -> None:
    found = by_role(predicted_memory(plan(table("ps", servers=servers), servers=servers)))
    assert found["server"].count == servers
    assert found["server"].step_bytes == pytest.approx(SERVER_BYTES + OVERHEAD * 2 * GB / servers, abs=2)
    assert found["server"].save_bytes - found["server"].step_bytes == 2 * GB // servers
    assert found["worker"].peak_bytes == WORKER_BYTES
    assert found["worker 0"].save_bytes - WORKER_BYTES == copies * 2 * GB


MAP = VariablePlan("table/keys", (1024, 4), "int64", GB, "none", "local", (), (), None, "", map_of="table")


@pytest.mark.parametrize(("route", "parts"), [("alltoall", 4), ("local", 1)])
def test_a_map_is_where_its_table_is(route: str, parts: int) -> None:
    """Its size is that of a table without a slot."""
    without = by_role(predicted_memory(plan(table(route))))["worker"]
    found = by_role(predicted_memory(plan(table(route), MAP)))["worker"]
    assert found.step_bytes - without.step_bytes == pytest.approx(OVERHEAD * GB / parts, abs=1)
    assert found.save_bytes - found.step_bytes == without.save_bytes - without.step_bytes


def test_a_map_that_is_larger_than_the_table_decides_what_a_save_copies() -> None:
    large = dataclasses.replace(MAP, size_bytes=8 * GB)
    found = by_role(predicted_memory(plan(table("alltoall"), large)))
    for role in ("worker", "worker 0"):
        assert found[role].save_bytes - found[role].step_bytes == 8 * GB // 4


def test_deltas_need_a_byte_for_each_row_and_a_copy_of_the_map() -> None:
    made = plan(table("alltoall"), MAP)
    without, found = (by_role(predicted_memory(made, saves_deltas=saves)) for saves in (False, True))
    for role in ("worker", "worker 0"):
        assert found[role].start_bytes - without[role].start_bytes == ROWS // 4 + GB // 4
    assert found["driver"] == without["driver"]


def test_the_chief_alone_tells_what_each_worker_has_whole() -> None:
    made = plan(table("allgather"))
    without, found = (by_role(predicted_memory(made, saves_deltas=saves)) for saves in (False, True))
    assert found["worker 0"].peak_bytes - without["worker 0"].peak_bytes == ROWS
    assert found["worker"] == without["worker"]


def test_a_table_whose_update_writes_all_rows_needs_no_marks() -> None:
    made = plan(dataclasses.replace(table("alltoall"), rows_written="all"))
    assert predicted_memory(made, saves_deltas=True) == predicted_memory(made)


def test_the_driver_holds_what_it_exports() -> None:
    found = by_role(predicted_memory(plan(table("alltoall")), exported_bytes=GB))
    assert found["driver"].save_bytes == DRIVER_BYTES + 2 * GB
    assert found["driver"].step_bytes == DRIVER_BYTES


@pytest.mark.parametrize(("size_bytes", "held_bytes"), [(GB, 2 * GB), (2 * GB, 4 * GB), (2 * GB + 1, 0)])
def test_a_large_saved_model_is_not_held(size_bytes: int, held_bytes: int, tmp_path: Path) -> None:
    tracked = checked_job(Composer().job(["model=simple", "tracking=mlflow", f"hydra.run.dir={tmp_path / 'run'}"]))
    large = plan(table("alltoall", size_bytes=size_bytes))
    assert with_memory(tracked, large, is_keras=False).memory[0].save_bytes == DRIVER_BYTES + held_bytes
    of_keras = with_memory(tracked, large, is_keras=True).memory[0]
    assert of_keras.save_bytes == DRIVER_BYTES + 2 * 2 * size_bytes, "model.keras"


def test_a_plan_keeps_and_shows_it() -> None:
    made = plan(table("alltoall"))
    made = dataclasses.replace(made, memory=predicted_memory(made))
    assert of_json(to_json(made)) == made
    assert memory_table(made).row_count == 3


def test_a_job_requests_half_as_much_more() -> None:
    made = plan(table("ps", servers=1), servers=1)
    server_bytes = by_role(predicted_memory(made))["server"].peak_bytes
    assert requested.server_mib(made) == -(-3 * server_bytes // 2 // 2**20)
    assert requested.process_mib(made) == max(requested.worker_mib(made), requested.server_mib(made))
    assert requested.server_mib(plan(table("alltoall"))) == 0


def config(tmp_path: Path, *lines: str) -> RunConfig:
    return checked_job(Composer().job(["model=simple", "tracking=off", *lines, f"hydra.run.dir={tmp_path / 'run'}"]))


def test_a_run_that_needs_more_than_this_machine_has_is_told_so(tmp_path: Path) -> None:
    made = plan(table("alltoall"))
    limit = MemoryLimit(3 * GB, "this machine")
    (note,) = with_memory(config(tmp_path), made, is_keras=False, limit=limit).notes
    assert note.startswith("the processes of this run may need ")
    assert "but this machine allows 3.22 GB" in note and "use more machines" in note
    assert with_memory(config(tmp_path), made, is_keras=False, limit=MemoryLimit(64 * GB, "x")).notes == ()


@pytest.mark.parametrize("lines", [["cluster=manual", "cluster.rendezvous=file:///shared/meet"], ["cluster=slurm"]])
def test_other_machines_are_not_compared_with_this_one(lines: list[str], tmp_path: Path) -> None:
    made = with_memory(config(tmp_path, *lines), plan(table("alltoall")), is_keras=False, limit=MemoryLimit(1, "x"))
    assert made.notes == () and made.memory


def write(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMORY = {"proc/meminfo": "MemTotal:       8388608 kB\nMemFree: 1 kB\n"}


def test_the_machine_is_the_limit_without_groups(tmp_path: Path) -> None:
    assert memory_limit(write(tmp_path, MEMORY)) == MemoryLimit(8 * GB, "this machine")
    assert memory_limit(tmp_path / "nothing") is None


def test_the_smallest_limit_of_all_groups_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": f"{2 * GB}\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
        },
    )
    found = memory_limit(root)
    assert found is not None and found.size_bytes == 2 * GB and "job/memory.max" in found.of


def test_groups_of_version_1_have_another_file(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **MEMORY,
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/a\n",
            "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": f"{GB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    found = memory_limit(root)
    assert found is not None and found.size_bytes == GB
