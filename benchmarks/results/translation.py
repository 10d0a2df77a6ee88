"""Multi30k, English to German, with a Keras model and BLEU on the test set of 2016."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.results import sentence_pairs as pairs
from benchmarks.results.bleu import bleu
from benchmarks.results.experiment import Experiment

MEASURE_STEPS = 60
# The arguments of the model, as in conf/model/translation.yaml.
WIDTH = 128
LEARNING_RATE = 0.003


def prepare(data: Path, files: Path) -> dict[str, float]:
    """Writes the files, and returns facts: numbers of pairs, and BLEU of the English sentences as translations."""
    pairs.write_files(data, files)
    sources = pairs.words_of(data / f"{pairs.TEST}.{pairs.SOURCE}")
    references = pairs.words_of(data / f"{pairs.TEST}.{pairs.TARGET}")
    (files / "references").write_text("\n".join(map(" ".join, references)), encoding="utf-8")
    train, _ = pairs.load(path=str(files), source_size=pairs.VOCAB_SIZE, target_size=pairs.VOCAB_SIZE)
    counts = {"train_pairs": len(train["source"]), "test_pairs": len(references)}
    return {**counts, "bleu_of_the_source": bleu(sources, references)}


def bleu_of_checkpoints(run_dir: Path, files: Path, recorded: Mapping[int, float]) -> dict[int, float]:
    """Returns BLEU of the checkpoint after each measured step. A word that the model does not know counts as wrong."""
    import keras

    import parallax_runner
    from benchmarks.results.translation_model import make_model, translate

    keras.utils.clear_session()  # otherwise the names of the next mode's layers would have numbers
    model = make_model(
        source_size=pairs.VOCAB_SIZE, target_size=pairs.VOCAB_SIZE, width=WIDTH, learning_rate=LEARNING_RATE, seed=0
    )
    sources = np.load(files / "test_sources.npy")
    references = [line.split(" ") for line in (files / "references").read_text(encoding="utf-8").split("\n")]
    vocabulary = pairs.read_vocabulary(files, pairs.TARGET)
    found = {}
    for step in recorded:
        parallax_runner.load_into_keras(model, run_dir / "ckpt" / f"model.ckpt-{step}")
        words = [[vocabulary[number] for number in sentence] for sentence in translate(model, sources)]
        found[step] = bleu(words, references)
    return found


EXPERIMENT = Experiment(
    name="translation",
    data="a folder with train and test_2016_flickr of Multi30k, .en and .de, plain or .gz",
    settings=(
        *(f"hydra.searchpath=[{ROOT / 'benchmarks' / 'conf'}]", "model=translation", "data=sentence_pairs"),
        *("data.path={files}", f"data.source_size={pairs.VOCAB_SIZE}", f"data.target_size={pairs.VOCAB_SIZE}"),
        *(f"model.width={WIDTH}", f"model.learning_rate={LEARNING_RATE}"),
        *(f"ckpt.save_steps={MEASURE_STEPS}", "ckpt.keep=null"),
    ),
    global_batch=128,
    steps=240,
    measure_steps=MEASURE_STEPS,
    recorded="validation/loss",
    metric="BLEU",
    prepare=prepare,
    values=bleu_of_checkpoints,
)
