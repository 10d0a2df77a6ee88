"""Decides which variables of a new run get their first values from the checkpoint of another run. Opens no session."""

from __future__ import annotations

import fnmatch
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from parallax_runner.config.schema import TakeConfig
from parallax_runner.errors import CheckpointError, ConfigError, Setting
from parallax_runner.files.plain import read_object
from parallax_runner.files.whole import write_whole

FILE_NAME = "warm_start.json"
KEY, RENAME, ROWS = "ckpt.warm_start", "ckpt.take.rename", "ckpt.take.rows"


@dataclass(frozen=True)
class Stored:
    """A tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Wanted:
    """A saved variable of the new run, in its full shape. `is_of_optimizer` says whether it is a slot or a counter, and
    `is_set` whether it is a learning rate, which the configuration of the new run sets. `owner` is the variable to
    which a slot belongs, or the variable itself. `map_of` is set for the variables of the map of a vocabulary that
    grows: it names the variable with the rows. `is_derived` is set for those that can be made from the other variables
    of a map, if a checkpoint does not have them."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_of_optimizer: bool = False
    is_set: bool = False
    owner: str = ""
    map_of: str = ""
    is_derived: bool = False


@dataclass(frozen=True)
class Taken:
    """A variable that gets the value of the tensor `source`, which has the dtype `dtype`. If `rows` is not None, it is
    the name of a file in the run's folder with the row of `source` for each row of the variable, or FRESH. If `value`
    is not None, it is the name of a file in the run's folder with the value instead."""

    name: str
    source: str
    dtype: str
    rows: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class WarmStart:
    """What a run takes from the checkpoint `prefix`. `fresh` are its other variables, which keep their own initial
    values. `ignored` are the tensors of the checkpoint that no variable takes. `files` has the contents of the files
    that `taken` names, by their names. If `prefix` is a file of Keras, `values` has the values of `taken` by their
    sources."""

    prefix: str
    taken: tuple[Taken, ...]
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]
    files: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    values: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def save(self, run_dir: Path) -> None:
        """Writes the files for the workers. Raises OSError if they cannot be written."""
        for name, array in self.files.items():
            content = io.BytesIO()
            np.save(content, array)
            write_whole(run_dir / name, content.getvalue())
        fields = {"prefix": self.prefix, "fresh": self.fresh, "ignored": self.ignored}
        text = json.dumps({**fields, "taken": [asdict(one) for one in self.taken]}, indent=1)
        write_whole(run_dir / FILE_NAME, text + "\n")

    @classmethod
    def load(cls, run_dir: Path) -> WarmStart:
        """Reads what `save` wrote, without the contents of `files`. Raises OSError or ValueError if that is not
        possible."""
        fields = read_object(run_dir / FILE_NAME)[1]
        taken = tuple(Taken(**one) for one in fields["taken"])
        return cls(fields["prefix"], taken, tuple(fields["fresh"]), tuple(fields["ignored"]))


def warm_start(
    prefix: str,
    stored: Mapping[str, Stored],
    wanted: Sequence[Wanted],
    take: TakeConfig,
    rows_of: Mapping[str, str] = MappingProxyType({}),
    value_of: Mapping[str, str] = MappingProxyType({}),
) -> WarmStart:
    """Returns what the run takes from a checkpoint that contains `stored`.

    See `chosen` for what is taken. Other dtypes are converted. `rows_of` maps each variable whose rows are taken by key
    to the file with these rows, which is also that of its slots. `value_of` maps variables to files with their values.

    Raises ConfigError and CheckpointError as `chosen` does, ConfigError if nothing is taken, and CheckpointError if a
    shape differs.
    """
    source_of = chosen(prefix, stored, wanted, take)
    taken = [
        _taken(prefix, one, source_of[one.name], stored, rows_of, value_of) for one in wanted if one.name in source_of
    ]
    if not taken:
        raise ConfigError(
            f"no variable of the model is taken from {prefix}, which contains {some(sorted(stored))}"
        ).about(Setting(KEY, prefix), remedy="set ckpt.take.rename")
    fresh = _without([one.name for one in wanted], {one.name for one in taken})
    return WarmStart(prefix, tuple(taken), fresh, _without(sorted(stored), {one.source for one in taken}))


def chosen(prefix: str, stored: Collection[str], wanted: Sequence[Wanted], take: TakeConfig) -> dict[str, str]:
    """Returns the tensor of each variable that the run takes from a checkpoint that contains `stored`.

    Each item of `take.rename` is OLD:NEW, with a name or a scope of the checkpoint and of the run. The patterns in
    `take.include` and `take.exclude` select variables of the run. The map of a vocabulary that grows is taken if and
    only if its rows are, and the slots of these rows are only taken with them.

    Raises ConfigError if a name or pattern in `take` matches nothing. Raises CheckpointError if the checkpoint has rows
    of a vocabulary that grows without their map.
    """
    names = [one.name for one in wanted]
    _check_patterns("include", take.include, names)
    _check_patterns("exclude", take.exclude, names)
    source_of = _renamed(stored, take.rename)
    for one in wanted:
        if one.is_derived and one.name not in source_of and one.map_of in source_of:
            source_of[one.name] = source_of[one.map_of]  # a file has the value, and the rows are what it belongs to
    selected = {one.name for one in wanted if one.name in source_of and _is_selected(one, take)}
    taken = _with_whole_tables(prefix, selected, wanted, source_of)
    return {name: source_of[name] for name in names if name in taken}


def _with_whole_tables(
    prefix: str, selected: set[str], wanted: Iterable[Wanted], source_of: Mapping[str, str]
) -> set[str]:
    """Returns what is taken so that rows of vocabularies that grow have their own keys and slots."""
    wanted = list(wanted)
    of_maps = {one.name: one.map_of for one in wanted if one.map_of}
    maps = {name: rows for name, rows in of_maps.items() if rows in selected}
    _check_maps(prefix, maps, source_of)
    fresh_rows = set(of_maps.values()) - selected
    slots_of_fresh = {one.name for one in wanted if one.owner in fresh_rows}
    return (selected - of_maps.keys() - slots_of_fresh) | maps.keys()


def _check_maps(prefix: str, of_maps: Mapping[str, str], source_of: Mapping[str, str]) -> None:
    """Raises CheckpointError if a variable of a map is missing. `of_maps` names the rows to which it belongs."""
    for name, rows in of_maps.items():
        if name not in source_of:
            raise CheckpointError(
                f"the checkpoint has «{source_of[rows]}» for «{rows}» but no «{name}», so the keys of the rows are "
                "unknown"
            ).about(Setting(KEY, prefix), remedy=f"to start the table afresh, add ckpt.take.exclude=['{rows}']")


def _without(names: Iterable[str], others: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)


def _taken(
    prefix: str,
    one: Wanted,
    source: str,
    stored: Mapping[str, Stored],
    rows_of: Mapping[str, str],
    value_of: Mapping[str, str],
) -> Taken:
    """Returns how a variable is taken from the tensor `source`. Raises CheckpointError if the shape differs."""
    if one.name in value_of:
        return Taken(one.name, source, stored[source].dtype, value=value_of[one.name])
    rows = rows_of.get(one.owner) if one.shape else None
    _check_shape(prefix, one, source, stored[source], by_key=rows is not None)
    return Taken(one.name, source, stored[source].dtype, rows)


def notes_on(start: WarmStart) -> list[str]:
    """Returns sentences that list what is taken, fresh and ignored."""
    renamed = [f"«{one.name}» from «{one.source}»" for one in start.taken if one.name != one.source]
    notes = [f"warm start from {start.prefix}: takes {some([one.name for one in start.taken])}"]
    if renamed:
        notes.append(f"warm start: renamed {some(renamed, quoted=False)}")
    if start.fresh:
        kept = "keeps its own initial value" if len(start.fresh) == 1 else "keep their own initial values"
        notes.append(f"warm start: {some(start.fresh)} {kept}")
    if start.ignored:
        notes.append(f"warm start: ignores {some(start.ignored)} of the checkpoint")
    return notes


def _renamed(stored: Collection[str], rename: Iterable[str]) -> dict[str, str]:
    """Returns the name in the checkpoint of each name that the run can have. Raises ConfigError if an item is not
    OLD:NEW, or if the old name or scope is not in the checkpoint."""
    found = {name: name for name in stored}
    for item in rename:
        old, new = _old_and_new(item)
        for name in _matching(stored, old, item):
            found.pop(name, None)
            found[new + name.removeprefix(old)] = name
    return found


def _old_and_new(item: str) -> tuple[str, str]:
    old, _, new = item.partition(":")
    if not old or not new:
        raise ConfigError("expected OLD:NEW, such as tower/:query/").about(Setting(RENAME, item))
    return old, new


def _matching(stored: Collection[str], old: str, item: str) -> list[str]:
    """Returns the names in the checkpoint that a name or a scope stands for."""
    is_scope = old.endswith("/")
    matching = [name for name in stored if name == old or (is_scope and name.startswith(old))]
    if not matching:
        raise ConfigError(f"the checkpoint has no variable «{old}»; it contains {some(sorted(stored))}").about(
            Setting(RENAME, item)
        )
    return matching


def _check_patterns(key: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(f"no variable matches this pattern; the model has {some(names)}").about(
                Setting(f"ckpt.take.{key}", pattern)
            )


def _is_selected(one: Wanted, take: TakeConfig) -> bool:
    if one.is_set or (one.is_of_optimizer and not take.slots):
        return False
    if take.include and not _matches(one.name, take.include):
        return False
    return not _matches(one.name, take.exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_shape(prefix: str, one: Wanted, source: str, stored: Stored, *, by_key: bool) -> None:
    first = 1 if by_key else 0
    if stored.shape[first:] != one.shape[first:]:
        raise CheckpointError(
            f"variable «{source}» has shape {list(stored.shape)} in the checkpoint, but «{one.name}» has shape "
            f"{list(one.shape)} in the model"
        ).about(Setting(KEY, prefix), remedy=f"to start it afresh, add ckpt.take.exclude=['{one.name}']")


MOST_NAMED = 8


def some(names: Sequence[str], *, quoted: bool = True) -> str:
    """Returns the first names for a message, and the number of the others."""
    shown = [f"«{name}»" if quoted else name for name in names[:MOST_NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
