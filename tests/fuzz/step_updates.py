"""Writes the updates of a random training step, and what it does after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz import kinds
from tests.fuzz.optimizers import LINEAR, keras_optimizer
from tests.fuzz.own_optimizers import own_optimizer
from tests.fuzz.text import WIDTH, Text

if TYPE_CHECKING:
    from tests.fuzz.step_source import Step


def update(text: Text, step: Step, kind: str | None) -> None:
    """Adds the update of all variables."""
    draw = text.draw
    if kind == kinds.CHOSEN_UPDATE:
        text.label(kind)
        _in_a_branch(text, step)
    elif kind is None and draw.chance(0.08):
        _v1_optimizer(text, step)
        step.lines += _applied(text, step, [f"g_{name}" for name in step.variables])
    elif kind in kinds.GROUPS["own"] or draw.chance(0.5):
        _optimizer(text, step, kind)
        step.lines += _applied(text, step, [f"g_{name}" for name in step.variables])
    else:
        _by_hand(text, step)


def _optimizer(text: Text, step: Step, kind: str | None) -> None:
    draw = text.draw
    if kind in kinds.GROUPS["own"]:
        step.made += own_optimizer(text, kind)
    elif step.has_rows():
        # The gradient of rows repeats ids, which only a linear update may.
        step.made.append(f"optimizer = keras.optimizers.{draw.one(LINEAR)}")
        text.label("optimizer: SGD")
    else:
        step.made.append(f"optimizer = {keras_optimizer(text)}")
    if draw.chance(0.8):
        step.made.append(f"optimizer.build([{', '.join(step.variables)}])")
    else:
        text.label("slots are made in the first step")
    step.kept.append("*optimizer.variables")


def _v1_optimizer(text: Text, step: Step) -> None:
    """Makes an optimizer of TensorFlow 1, whose slots an update with zeros creates."""
    name = text.draw.one(("AdagradOptimizer(0.05", "FtrlOptimizer(0.05", "MomentumOptimizer(0.05, 0.9"))
    text.label(f"optimizer: v1 {name.partition('O')[0]} in a step")
    variables = ", ".join(step.variables)
    step.made += [
        f"optimizer = tf.compat.v1.train.{name})",
        f"begun = [v.numpy() for v in [{variables}]]",
        f"optimizer.apply_gradients([(tf.zeros_like(v), v) for v in [{variables}]])",
        f"for v, value in zip([{variables}], begun):",
        "    v.assign(value)",
    ]
    step.kept.append("*optimizer.variables()")


def _applied(text: Text, step: Step, gradients: list[str]) -> list[str]:
    given, variables = ", ".join(gradients), ", ".join(step.variables)
    if text.draw.chance(0.5) and "*optimizer.variables()" not in step.kept:
        return [f"optimizer.apply([{given}], [{variables}])"]
    return [f"optimizer.apply_gradients(zip([{given}], [{variables}]))"]


def _by_hand(text: Text, step: Step) -> None:
    text.label("update: by hand")
    draw = text.draw
    for name in step.tables:
        sliced = f"tf.IndexedSlices(0.1 * tf.convert_to_tensor(g_{name}.values), g_{name}.indices)"
        if step.sources[name].startswith("copy_") or draw.chance(0.2):
            step.lines.append(f"{name}.assign_sub(0.1 * tf.convert_to_tensor(g_{name}))")
        else:
            step.lines.append(f"{name}.scatter_sub({sliced})")
    for name in step.weights:
        how = draw.one(("assign_sub", "assign_sub", "assign", "slice", "momentum"))
        text.label(f"update: {how}")
        if how == "assign_sub":
            step.lines.append(f"{name}.assign_sub(0.1 * g_{name})")
        elif how == "assign":
            step.lines.append(f"{name}.assign({name} - 0.1 * g_{name})")
        elif how == "slice":
            step.lines.append(f"{name}[:2].assign({name}[:2] - 0.1 * g_{name}[:2])")
        else:
            step.made.append(f'm_{name} = tf.Variable(tf.zeros_like({name}), trainable=False, name="m_{name}")')
            step.kept.append(f"m_{name}")
            step.lines += [f"m_{name}.assign(0.9 * m_{name} + g_{name})", f"{name}.assign_sub(0.1 * m_{name})"]


def _in_a_branch(text: Text, step: Step) -> None:
    """Applies an optimizer in every second step, or only if all gradients are finite."""
    _optimizer(text, step, None)
    step.lines += [f"g_{name} = tf.convert_to_tensor(g_{name})" for name in step.variables]
    gradients = [f"g_{name}" for name in step.variables]
    if text.draw.chance(0.5):
        text.label("only finite gradients")
        finite = [f"tf.reduce_all(tf.math.is_finite({one}))" for one in gradients]
        applied = _applied(text, step, gradients)
        condition = f"tf.reduce_all([{', '.join(finite)}])"
    else:
        text.label("accumulation: by hand")
        _count(step)
        for name in step.variables:
            step.made.append(f'sum_{name} = tf.Variable(tf.zeros_like({name}), trainable=False, name="sum_{name}")')
            step.kept.append(f"sum_{name}")
            step.lines.append(f"sum_{name}.assign_add(g_{name})")
        applied = _applied(text, step, [f"0.5 * sum_{name}" for name in step.variables])
        applied += [f"sum_{name}.assign(tf.zeros_like(sum_{name}))" for name in step.variables]
        condition = "count % 2 == 0"
    if text.draw.chance(0.5):
        step.lines += [f"if {condition}:", *(f"    {line}" for line in applied)]
        return
    step.lines += ["def apply():", *(f"    {line}" for line in applied), "    return 1", ""]
    step.lines.append(f"tf.cond({condition}, apply, lambda: 0)")


def _count(step: Step) -> None:
    if "count" not in step.kept:
        step.made.append('count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")')
        step.kept.append("count")
        step.lines.append("count.assign_add(1)")


def extras(text: Text, step: Step, kind: str | None) -> None:
    """Adds what a step does after its updates."""
    of_kind: dict[str | None, Callable[[Text, Step], None]] = {
        kinds.LOOP: _power_iteration,
        kinds.BRANCH: _branch,
        kinds.AVERAGE_IN_BRANCH: _average_in_branch,
    }
    if kind in of_kind:
        text.label(str(kind))
        of_kind[kind](text, step)
    every = (_average, _constraint, _short, *((_prior, _steps_done) if kind is None else ()))
    for extra in text.draw.some(every, text.draw.randint(0, 1)):
        extra(text, step)


def _trainable(text: Text) -> str:
    """Returns an argument of a variable. TensorFlow's default is True."""
    is_default = text.draw.chance(0.75)
    text.label("trainable" if is_default else "not trainable")
    return "" if is_default else "trainable=False, "


def _power_iteration(text: Text, step: Step) -> None:
    step.made.append(f'u = tf.Variable(np.ones({WIDTH}), {_trainable(text)}name="u")')
    step.kept.append("u")
    refined = "u.assign(tf.math.l2_normalize(tf.linalg.matvec(W, u)))"
    how = text.draw.one(("for", "while", "while_loop"))
    if how == "for":
        step.lines += ["for _ in tf.range(3):", f"    {refined}"]
    elif how == "while":
        step.lines += ["n = 0", "while tf.constant(3) > n:", f"    {refined}", "    n += 1"]
    else:
        step.lines += ["def refine(n):", f"    {refined}", "    return n + 1", ""]
        step.lines.append("tf.while_loop(lambda n: n < 3, refine, [tf.constant(0)])")
    if text.draw.chance(0.4):
        text.label("spectral normalization")
        step.lines.append("W.assign(W / tf.maximum(tf.norm(tf.linalg.matvec(W, u)), 1.0))")


def _branch(text: Text, step: Step) -> None:
    step.made.append(f'copy = tf.Variable(np.zeros(({WIDTH}, {WIDTH})), trainable=False, name="copy")')
    step.kept.append("copy")
    _count(step)
    step.lines += ["if count % 2 == 0:", "    W.assign(0.5 * W)", "    copy.assign(W + 0.1)"]
    if text.draw.chance(0.4):
        step.lines += ["else:", "    W.assign_add(0.01 * copy)", "    copy.assign(2.0 * W)"]


def _average_in_branch(text: Text, step: Step) -> None:
    step.made.append(f'average = tf.Variable(W + 0.0, {_trainable(text)}name="average")')
    step.kept.append("average")
    _count(step)
    step.lines += [
        "if count > 1:",
        "    average.assign(0.9 * average + 0.1 * W)",
        "    average.assign_sub(0.01 * average)",
        "    W.assign(tf.where(count % 3 == 0, average, W))",
    ]


def _average(text: Text, step: Step) -> None:
    text.label("moving average")
    step.made.append('average_0 = tf.Variable(W + 0.0, trainable=False, name="average_0")')
    step.kept.append("average_0")
    step.lines.append("average_0.assign_sub(0.1 * (average_0 - W))")


def _constraint(text: Text, step: Step) -> None:
    text.label("constraint: by hand")
    name = text.draw.one(step.variables)
    if name == "bias":
        step.lines.append("bias.assign(tf.clip_by_value(bias, -0.05, 0.05))")
    else:
        step.lines.append(f"{name}.assign(tf.clip_by_norm({name}, 0.8, axes=[1]))")


def _short(text: Text, step: Step) -> None:
    """Keeps an average in a shorter dtype than the weights have."""
    text.label("dtype: float32")
    step.made.append(f'short = tf.Variable(np.zeros({WIDTH}, "float32"), trainable=False, name="short")')
    step.kept.append("short")
    step.lines.append("short.assign(0.5 * short + tf.cast(tf.reduce_sum(W, axis=0), tf.float32))")


def _prior(text: Text, step: Step) -> None:
    """Looks up fixed rows with ids of 16 bits, which TensorFlow does for tensors but not for variables."""
    text.label("ids: int16")
    feature = "a" if "a" in text.features else "x"
    if feature == "x":
        return
    step.made.append(f'prior = tf.Variable(numbers({text.seed()}, 7, {WIDTH}), trainable=False, name="prior")')
    step.kept.append("prior")
    looked_up = 'tf.gather(tf.convert_to_tensor(prior), tf.cast(batch["a"], tf.int16))'
    at = next(number for number, line in enumerate(step.lines) if line.lstrip().startswith("h = "))
    indent = " " * (len(step.lines[at]) - len(step.lines[at].lstrip()))
    step.lines.insert(at + 1, f"{indent}h = h + 0.1 * {looked_up}")


def _steps_done(text: Text, step: Step) -> None:
    """Counts steps in a variable with the name that the capture gives the step."""
    text.label("name: step")
    step.made.append('done = tf.Variable(0, dtype=tf.int32, trainable=False, name="step")')
    step.kept.append("done")
    step.lines.append("done.assign_add(1)")
