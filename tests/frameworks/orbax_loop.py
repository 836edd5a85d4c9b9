import os
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

# docs/progress.md: Report progress
folder, total = os.environ["CHECKPOINTS"], 1_000_000
jax.distributed.initialize(num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"]))
manager = ocp.CheckpointManager(f"{folder}/orbax", options=ocp.CheckpointManagerOptions(save_interval_steps=1000))
state, first, saved = {"steps": np.zeros(1)}, 1, ""
if (last := manager.latest_step()) is not None:
    state, saved = manager.restore(last, args=ocp.args.StandardRestore(state)), last
    assert state["steps"].item() == saved, state
    first = saved + 1
if jax.process_index() == 0:
    with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
        f.write(f"{saved}\n")


def train(state):
    time.sleep(0.05)
    return {"steps": state["steps"] + 1}


# docs/how-to/checkpoint-on-request.md: JAX with Orbax
