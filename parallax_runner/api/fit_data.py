"""What `fit` is given to train on, as a data set of batches of all workers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_runner.errors import ConfigError

KERAS_BATCH = 32  # what Keras takes where nobody says


def dataset_of(
    x: Any,
    y: Any,
    *,
    batch_size: int | None,
    steps_per_epoch: int | None,
    validation_data: Any,
    class_weight: dict[int, float] | None,
    sample_weight: Any,
    shuffle: bool,
    exact: bool,
    known: Mapping[str, Any],
) -> Any:
    """A data set with `features`, `structure`, `global_batch`, `train_size` and `validation_size`.

    `known` are facts that the first process has found.

    Raises ConfigError and DataError where it cannot be read by several workers.
    """
    import tensorflow as tf

    if isinstance(x, tf.data.Dataset):
        for name, value in (("y", y), ("sample_weight", sample_weight), ("batch_size", batch_size)):
            if value is not None:
                raise ConfigError(f"{name} (fit): a tf.data.Dataset has it already; leave it out")
        from parallax_runner.graph.tf_data.dataset import TfDataset

        weighted = x if class_weight is None else x.map(_weights(class_weight))
        found = TfDataset(weighted, validation_data, exact=exact, **known)
        if found.is_endless and steps_per_epoch is None:
            raise ConfigError("steps_per_epoch=None (fit): the data never ends; give the steps of an epoch")
        return found
    from parallax_runner.data.from_arrays import arrays_dataset

    if class_weight is not None:
        sample_weight = _weights_of_arrays(y, sample_weight, class_weight)
    return arrays_dataset(
        x,
        y,
        sample_weight,
        batch_size=batch_size or KERAS_BATCH,
        shuffle=shuffle,
        seed=0,
        validation=validation_data,
    )


def _weights(class_weight: dict[int, float]) -> Any:
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.utils import unpack_x_y_sample_weight

    def weighted(*batch: Any) -> Any:
        x, y, sample_weight = unpack_x_y_sample_weight(batch if len(batch) > 1 else batch[0])
        if sample_weight is not None:
            raise ConfigError("class_weight (fit): the data has a sample weight already; give one of the two")
        return x, y, class_weight_to_sample_weights(y, class_weight)

    return weighted


def _weights_of_arrays(y: Any, sample_weight: Any, class_weight: dict[int, float]) -> Any:
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    if sample_weight is not None:
        raise ConfigError("class_weight (fit): sample_weight is given too; give one of the two")
    return class_weight_to_sample_weights(y, class_weight)
