"""The metrics that `fit` computes in validations beside those of the model, such as metrics of groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallax_runner.graph.traced.keras_model import MakeElement
    from parallax_runner.graph.traced.named_metrics import NamedMetrics


@dataclass(frozen=True)
class ValidationMetrics:
    """The metrics with these names. `groups` is the key of x that has the group of each example, or None."""

    names: tuple[str, ...] = ()
    groups: str | None = None

    def named(self, element: MakeElement) -> NamedMetrics | None:
        """Returns the metrics of the elements that `element` makes, with their groups, or None if there are none.
        Raises CaptureError if a metric is unknown or needs groups."""
        if not self.names:
            return None
        from parallax_runner.graph.traced.named_metrics import NamedMetrics

        return NamedMetrics.of_elements(self.names, element, self.groups)

    def for_model(self, element: MakeElement, model: Any) -> MakeElement:
        """Returns the function that makes the elements for the model. They are without the groups if the groups are no
        input of the model, because Keras would take them for another input."""
        inputs = _inputs_of(model)
        if self.groups is None or inputs is None or self.groups in inputs:
            return element
        return lambda tensors: self._without_groups(element(tensors))

    def _without_groups(self, element: Any) -> Any:
        x, *others = element if isinstance(element, tuple) else (element,)
        if not isinstance(x, Mapping):
            return element
        kept = {key: value for key, value in x.items() if key != self.groups}
        return (kept, *others) if isinstance(element, tuple) else kept


def _inputs_of(model: Any) -> Collection[str] | None:
    """Returns the keys that a model takes from a dict of inputs, or None if they are unknown."""
    from parallax_runner.graph.traced.keras_model import input_names

    expected = getattr(model, "_inputs_struct", None)
    return expected.keys() if isinstance(expected, dict) else input_names(model) or None
