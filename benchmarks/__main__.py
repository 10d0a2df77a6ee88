"""`python -m benchmarks [loop | startup | plan | data | read | memory | partitions | --hosts N] [options]`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import conversion, loop, machine, memory, modes, planning, reading, startup
from benchmarks.hosts.measure import INTERRUPTED, enter_network
from benchmarks.hosts.network import MAX_HOSTS, NoNetwork
from benchmarks.hosts.rounds import split_steps
from benchmarks.runs import RunFailed
from benchmarks.tables import Rows, markdown, rows_of_modes, show, tell, write_section

KINDS = ("modes", "loop", "startup", "plan", "data", "read", "memory", "partitions", "hosts")
INTERRUPTED_STATUS = 130
# The default number of repeats, number of steps (in a run or a block), and modes.
DEFAULTS = {
    "modes": (5, 150, "mpi,hybrid,ps"),
    "loop": (10, 50, ""),
    "startup": (5, 0, "hybrid,mpi"),
    "plan": (1, 0, ""),
    "data": (5, 0, ""),
    "read": (5, 0, ""),
    "memory": (1, 20, "sharded,hybrid"),
    "partitions": (3, 20, ""),
    "hosts": (3, 40, "mpi,ps,hybrid,sharded,auto,horovod,horovod_dense:6,tensorflow_ps"),
}


def main(arguments: Sequence[str]) -> int:
    """Measures, prints the results, and writes JSON, Markdown and, for modes, a plot."""
    asked = parse(arguments)
    if asked.kind == "partitions" or (asked.kind == "hosts" and not asked.loopback):
        enter_network(tell)
    folder = (asked.out or Path("bench") / f"{datetime.now():%Y-%m-%d-%H%M%S}").resolve()
    folder.mkdir(parents=True)
    about = machine.describe() | {"command": shlex.join(["scripts/bench", *arguments])}
    try:
        results = _MEASURED[asked.kind](asked, folder, about)
    except (RunFailed, ValueError, NoNetwork) as error:
        tell(f"scripts/bench: {error}")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS
    (folder / f"{asked.kind}.json").write_text(json.dumps(about | results, indent=1) + "\n", encoding="utf-8")
    tell(f"written to {folder}: {asked.kind}.json, and {asked.kind}.md to paste into docs/benchmarks.md")
    if results.get("ended_early"):
        tell(f"scripts/bench: ended early: {results['ended_early']}")
        return INTERRUPTED_STATUS if results["ended_early"] == INTERRUPTED else 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments. Exits with status 2 if they are invalid."""
    kind = arguments[0] if arguments and arguments[0] in KINDS else "modes"
    if kind != "partitions" and any(word == "--hosts" or word.startswith("--hosts=") for word in arguments):
        kind = "hosts"
    repeats, steps, comms = DEFAULTS[kind]
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    if kind not in ("plan", "memory"):
        parser.add_argument("--repeats", type=_positive, default=repeats, help=f"number of rounds (default {repeats})")
    if kind not in ("startup", "plan", "data", "read"):
        parser.add_argument("--steps", type=_positive, default=steps, help=f"steps of a run or block (default {steps})")
    if kind not in ("loop", "plan", "data", "read", "partitions"):
        parser.add_argument("--modes", default=comms, help=f"modes to measure (default {comms})")
    if kind == "hosts":
        parser.add_argument(
            "--hosts", type=_hosts_number, required=True, help="number of hosts (network namespaces), one rank each"
        )
        parser.add_argument(
            "--mbit", type=_positive, default=200, help="speed of each host's link, each way (default 200)"
        )
        parser.add_argument("--latency-us", type=_positive, default=0, help="added one way, if the kernel supports it")
        parser.add_argument("--loopback", action="store_true", help="ranks on this host, without links between them")
    if kind == "plan":
        parser.add_argument("--tables", type=_positive, nargs="+", default=[26, 52, 100, 300], help="numbers of tables")
        parser.add_argument(
            "--models", choices=planning.MODELS, nargs="+", default=list(planning.MODELS), help="kinds of models"
        )
        parser.add_argument("--profile", action="store_true", help="run each plan under cProfile")
    if kind == "memory":
        parser.add_argument("--rows", type=_positive, nargs="+", default=[500_000, 2_000_000], help="rows of the table")
        parser.add_argument("--workers", type=_positive, default=2, help="number of workers (default 2)")
        parser.add_argument(
            "--models", choices=memory.MODELS, nargs="+", default=list(memory.MODELS), help="kinds of models"
        )
    if kind in ("data", "read"):
        parser.add_argument("--megabytes", type=_positive, default=300, help="size of the file (default 300)")
    if kind == "read":
        parser.add_argument(
            "--peer-rows", type=_positive, default=400_000, help="rows of the files of tf.data (default 400000)"
        )
    if kind == "partitions":
        parser.add_argument(
            "--hosts", type=_positive, default=4, help="hosts, each with a worker and a server (default 4)"
        )
        parser.add_argument("--mbit", type=_positive, default=1000, help="speed of each host's link (default 1000)")
    parser.add_argument("--out", type=Path, help="a folder that does not exist (default bench/<date>-<time>)")
    if kind not in ("data", "read"):  # they start no run
        parser.add_argument("overrides", nargs="*", help="Hydra overrides for every run, such as data.batch_size=32")
    asked = parser.parse_intermixed_args(arguments[1:] if arguments[:1] == [kind] else arguments)
    if asked.out is not None and asked.out.exists():
        parser.error(f"--out {asked.out} already exists: name a new folder")
    if kind == "hosts":
        try:
            for mode in asked.modes.split(","):
                split_steps(mode, asked.steps)
        except ValueError as error:
            parser.error(f"--modes: {error}")
    asked.kind = kind
    return asked


def _modes(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    from benchmarks import plot

    found = modes.measure(
        asked.modes.split(","),
        repeats=asked.repeats,
        steps=asked.steps,
        overrides=asked.overrides,
        folder=folder / "runs",
        tell=tell,
    )
    overlap = min(one.overlap for one in found if one.overlap is not None)
    fact = (
        f"ideal: two runs of comm=local side by side, one thread each, counted while both train "
        f"(at least {overlap:.0%} of the time); modes: two workers of one thread and one server; "
        f"{asked.steps} steps, {asked.repeats} rounds; bytes: per step and worker"
    )
    busy = [one for one in found if one.busy_share > machine.BUSY_LIMIT]
    facts = [fact, *([f"the machine was busy before {len(busy)} of {len(found)} measurements"] if busy else [])]
    _tell_all(rows_of_modes(modes.summarize(found)), "modes", folder, about, facts)
    plot.draw(found, folder / "modes.png", machine.sentence(about))
    return {"measurements": modes.as_json(found), "steps": asked.steps, "overrides": asked.overrides}


def _loop(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    found = loop.measure_loop(
        repeats=asked.repeats, steps=asked.steps, overrides=asked.overrides, folder=folder / "runs", tell=tell
    )
    _tell_all(loop.rows_of_loop(found), "loop", folder, about, ["comm=local, one thread, medians over blocks"])
    return {"measurements": loop.as_json(found), "overrides": asked.overrides}


def _startup(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    comms = asked.modes.split(",")
    (folder / "runs").mkdir()
    found = startup.measure_starts(
        comms, repeats=asked.repeats, overrides=asked.overrides, folder=folder / "runs", tell=tell
    )
    stages = {f"comm={comm}, the slowest process of each kind": startup.rows_of_stages(found[comm]) for comm in comms}
    for title, rows in stages.items():
        show(rows, title)
    facts = [
        f"the default experiment with tracking, {asked.repeats} starts; "
        "TensorFlow's imports: the driver's and the slowest worker's"
    ]
    _tell_all(startup.rows_of_totals(found), "startup", folder, about, facts)
    with open(folder / "startup.md", "a", encoding="utf-8") as section:
        section.writelines(f"\n{title}:\n\n{markdown(rows)}" for title, rows in stages.items())
    return {"measurements": startup.as_json(found), "overrides": asked.overrides}


def _plan(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    found = planning.measure(
        asked.models,
        asked.tables,
        overrides=asked.overrides,
        folder=folder / "runs",
        profile=asked.profile,
        tell=tell,
    )
    _tell_all(planning.rows_of(found), "plan", folder, about, ["one process for each plan; stages in wall-clock time"])
    return {"measurements": planning.as_json(found), "overrides": asked.overrides}


def _data(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    found, size_bytes = conversion.measure(repeats=asked.repeats, megabytes=asked.megabytes, folder=folder, tell=tell)
    facts = [
        f"a file of {size_bytes / 1e6:.0f} MB in Criteo's layout, {asked.repeats} rounds; each way has its own process"
    ]
    _tell_all(conversion.rows_of(found, size_bytes), "data", folder, about, facts)
    return {"measurements": conversion.as_json(found), "size_bytes": size_bytes}


def _read(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    found, prepared = reading.measure(
        repeats=asked.repeats, megabytes=asked.megabytes, peer_rows=asked.peer_rows, folder=folder, tell=tell
    )
    _tell_all(reading.rows_of(found), "read", folder, about, prepared.facts())
    return reading.as_json(found, prepared)


def _memory(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    cases = [
        memory.Case(model, comm, asked.workers, rows)
        for model in asked.models
        for comm in asked.modes.split(",")
        for rows in asked.rows
    ]
    found = memory.measure(cases, steps=asked.steps, overrides=asked.overrides, folder=folder / "runs", tell=tell)
    facts = [
        f"{asked.workers} workers, rows of {memory.WIDTH} float32 numbers, Adagrad, {asked.steps} steps; VmHWM minus "
        f"that of the same run with {memory.LITTLE_ROWS:,} rows"
    ]
    _tell_all(memory.rows_of(found), "memory", folder, about, facts)
    return {"measurements": memory.as_json(found), "steps": asked.steps, "overrides": asked.overrides}


def _hosts(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.hosts import measure, results

    found = measure.measure_hosts(asked, folder / "runs", tell)
    busy = [one for one in found.measurements if one.busy_share > machine.BUSY_LIMIT]
    facts = [
        found.fact,
        *([f"the machine was busy before {len(busy)} of {len(found.measurements)} measurements"] if busy else []),
    ]
    if found.ended_early:
        facts.append(f"ended early, after {len(found.measurements)} measurements")
    _tell_all(results.rows_of_hosts(found.measurements), "hosts", folder, about, facts)
    results.draw(found.measurements, folder / "hosts.png", f"{found.fact}; {machine.sentence(about)}")
    return found.as_json() | {"steps": asked.steps, "overrides": asked.overrides}


def _partitions(asked: argparse.Namespace, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    from benchmarks import partitions

    found = partitions.measure(asked, folder / "runs", tell)
    facts = found.facts()
    for fact in facts:
        tell(fact)
    if found.busy:
        facts.append(f"the machine was busy before {found.busy} of the measurements")
    _tell_all(found.rows(), "partitions", folder, about, facts)
    return found.as_json() | {"steps": asked.steps, "overrides": asked.overrides}


def _tell_all(rows: Rows, title: str, folder: Path, about: dict[str, Any], facts: Sequence[str]) -> None:
    show(rows, title)
    sentences = [f"`{about['command']}`, {machine.sentence(about)};", *(f"{fact}." for fact in facts)]
    write_section(folder / f"{title}.md", title=f"{about['date'][:10]}: {title}", facts=sentences, rows=rows)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def _hosts_number(text: str) -> int:
    number = _positive(text)
    if number > MAX_HOSTS:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_HOSTS}, got {number}")
    return number


_MEASURED = {
    "modes": _modes,
    "loop": _loop,
    "startup": _startup,
    "plan": _plan,
    "data": _data,
    "read": _read,
    "memory": _memory,
    "hosts": _hosts,
    "partitions": _partitions,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
