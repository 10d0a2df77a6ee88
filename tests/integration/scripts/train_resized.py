"""A test script whose number of workers changes: each worker feeds its own rows until some steps are done. Its settings
are on its command line, as JSON."""

import json
import os
import sys
import time

import tensorflow.compat.v1 as tf

import parallax_runner as parallax
from tests.integration.elastic import SCRIPT_IDS, build_of_script

ASKED = json.loads(sys.argv[1])

tf.disable_v2_behavior()
graph = tf.Graph()
with graph.as_default():
    build_of_script()
config = parallax.Config()
config.run_dir, config.tracking, config.average_sparse = "out", False, True
config.overrides = ASKED["overrides"]
session, workers, worker, _ = parallax.parallel_run(graph, None, parallax_config=config)
print(f"worker {worker} of {workers}", flush=True)
done = 0
while done < ASKED["until"]:
    if not os.path.exists(ASKED["fast"]):
        time.sleep(0.1)
    fetched = session.run({"step": "global_step:0", "train": "train"}, {"ids:0": [SCRIPT_IDS[worker]]})
    done = session.run("global_step:0")[0]
