"""Paddle's `init` for trainers: `from parallax_runner import paddle`."""

from __future__ import annotations

import os
from typing import Any

from parallax_runner.api.scripts_without_driver import take_part
from parallax_runner.frontdoors.door import Task
from parallax_runner.frontdoors.paddle.flags import settings_of


def init(
    *,
    use_gpu: bool | None = None,
    trainer_count: int | None = None,
    port: int | None = None,
    ports_num: int | None = None,
    ports_num_for_sparse: int | None = None,
    num_gradient_servers: int | None = None,
    num_of_gradient_servers: int | None = None,
    trainer_id: int | None = None,
    pservers: str | None = None,
    nics: str | None = None,
    is_local: bool | None = None,
) -> None:
    """Declares which trainer this process is. `parallel_run` or `fit` then trains with the pservers and all trainers.

    Missing arguments come from environment variables such as `PADDLE_INIT_TRAINER_ID`. Trainer 0 drives the run. The
    other trainers exit here when the run ends. With `is_local=True`, this function does nothing. `trainer_count` has no
    effect: each trainer is one worker and uses all devices that its model names. An invalid argument ends the script
    with exit status 2.
    """
    given: dict[str, Any] = {
        "use_gpu": use_gpu,
        "port": port,
        "ports_num": ports_num,
        "ports_num_for_sparse": ports_num_for_sparse,
        "num_gradient_servers": num_gradient_servers,
        "num_of_gradient_servers": num_of_gradient_servers,
        "trainer_id": trainer_id,
        "pservers": pservers,
        "nics": nics,
        "is_local": is_local,
    }

    def read() -> Task | None:
        settings = settings_of(given, os.environ)
        return None if settings.is_local else settings.task("worker", os.environ)

    take_part(read)
