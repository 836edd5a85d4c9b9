import os
import signal
import time

import deepspeed
import torch
import torch.distributed as dist

# docs/progress.md: Report progress
# docs/how-to/checkpoint-on-request.md: PyTorch 1
folder, total = os.environ["CHECKPOINTS"], 1_000_000
deepspeed.init_distributed(dist_backend="gloo")
rank = dist.get_rank()
model = torch.nn.Linear(1, 1)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), config={"train_micro_batch_size_per_gpu": 1}
)


def loss(engine):
    time.sleep(0.05)
    return engine(torch.ones(1, 1)).sum()


engine.load_checkpoint(folder)
saved = engine.global_steps or ""
if rank == 0:
    with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
        f.write(f"{saved}\n")
# docs/how-to/checkpoint-on-request.md: DeepSpeed
