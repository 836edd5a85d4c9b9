# Saves for 45 s after SIGTERM and ends, longer than torchrun waits by default.
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

# docs/progress.md: Report progress
pending = []
signal.signal(signal.SIGTERM, lambda *_: pending.append(True))
folder = os.environ["CHECKPOINTS"]
path = f"{folder}/state.pt"
dist.init_process_group("gloo")
rank = dist.get_rank()
first = torch.load(path) + 1 if os.path.exists(path) else 1
if rank == 0:
    with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
        f.write(f"{first - 1 or ''}\n")
for step in range(first, 1_000_000):
    time.sleep(0.05)
    flag = torch.tensor(len(pending))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    if flag:
        time.sleep(45)
        if rank == 0:
            torch.save(step, path)
            tell(step, step)
        time.sleep(2)
        sys.exit()
    if rank == 0:
        tell(step)
