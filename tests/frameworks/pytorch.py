import os
import signal
import time

import torch
import torch.distributed as dist

# docs/progress.md: Report progress
folder, total = os.environ["CHECKPOINTS"], 1_000_000
path = f"{folder}/state.pt"
dist.init_process_group("gloo")
rank = dist.get_rank()
weights = torch.zeros(1)

# docs/how-to/checkpoint-on-request.md: PyTorch 1


def train(step):
    time.sleep(0.05)
    weights.add_(1)
    dist.all_reduce(weights, dist.ReduceOp.MAX)


def write_part(step):
    torch.save({"step": step, "weights": weights}, f"{path}.{rank}")


def commit(step):
    os.replace(f"{path}.0", path)


# docs/how-to/checkpoint-on-request.md: What the step means
first, saved = 1, ""
if os.path.exists(path):
    state = torch.load(path)
    weights, saved = state["weights"], state["step"]
    assert weights.item() == saved, state
    first = saved + 1
if rank == 0:
    with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
        f.write(f"{saved}\n")
# docs/how-to/checkpoint-on-request.md: PyTorch 2
