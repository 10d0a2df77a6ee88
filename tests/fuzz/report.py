"""The report of a set of random models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.fuzz import kinds
from tests.fuzz.outcomes import REFUSED, Outcome
from tests.fuzz.random_model import RandomModel

# The largest share of models that may be refused.
REFUSED_SHARE = 0.10
# The smallest share of models that each group of kinds must have.
GROUP_SHARE = 0.05


def group_shares(models: Sequence[RandomModel]) -> dict[str, float]:
    """Returns the share of models that have a kind of each group."""
    counts = Counter(group for model in models for group in kinds.groups_of(model.labels))
    return {group: counts[group] / len(models) for group in kinds.GROUPS}


def refused_share(outcomes: Sequence[Outcome]) -> float:
    """Returns the share of models that were refused before the first step."""
    return sum(outcome.status == REFUSED for outcome in outcomes) / len(outcomes)


def finds(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Returns the outcomes that must not be."""
    return [outcome for outcome in outcomes if outcome.is_find]


def lines(outcomes: Sequence[Outcome], folder: object) -> Iterator[str]:
    """Yields the report: counts by outcome, kind and mode, refusals by reason, and each find."""
    models = [outcome.model for outcome in outcomes]
    yield f"{len(models)} models: " + _listed(Counter(outcome.status for outcome in outcomes))
    comms = Counter(" then ".join(one.comm for one in model.segments) for model in models)
    yield f"modes: {_listed(comms)}"
    yield f"ranks: {_listed(Counter(str(model.ranks) for model in models))}"
    for group, share in group_shares(models).items():
        yield f"kinds «{group}» in {share:.0%} of the models:"
        for kind in kinds.GROUPS[group]:
            of_kind = Counter(outcome.status for outcome in outcomes if kind in outcome.model.labels)
            yield f"  {kind.partition(': ')[2]}: {_listed(of_kind)}"
    yield f"refused: {refused_share(outcomes):.1%} (at most {REFUSED_SHARE:.0%})"
    reasons: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.status == REFUSED:
            reasons.setdefault(_reason(outcome.text), []).append(outcome.model.seed)
    for reason, seeds in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"  {len(seeds)} × {reason} (seeds {', '.join(map(str, seeds))})"
    for outcome in finds(outcomes):
        yield f"FIND seed {outcome.model.seed}: {outcome.status}: {_short(outcome.text)}"
        yield f"  {outcome.model.name}"
        yield f"  source: {folder}/models/seed_{outcome.model.seed}.py"


def in_full(outcome: Outcome) -> str:
    """Returns a find with the whole text."""
    return f"seed {outcome.model.seed}: {outcome.status}\n{outcome.model.name}\n{outcome.text}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def _short(text: str) -> str:
    """Returns the text, or the message at the end of a traceback. Keras appends the arguments of calls to messages."""
    message = text.partition("Arguments received by")[0].strip()
    if "Traceback" not in message:
        return message[:400]
    lines = message.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("  File "))
    return " ".join(line.strip() for line in lines[last:] if line.strip(" ^~"))[:400]


def _reason(text: str) -> str:
    """Returns a refusal without the names that differ from model to model."""
    return re.sub(r"«[^»]*»", "«…»", text)[:160]
