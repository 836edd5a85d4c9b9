import os
import signal
import time

import torch
import torch.distributed as dist
import transformers
from transformers.trainer_utils import get_last_checkpoint

# docs/progress.md: Report progress
# docs/progress.md: Total and metrics 2
# docs/how-to/checkpoint-on-request.md: Hugging Face Trainer
folder = os.environ["CHECKPOINTS"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        time.sleep(0.05)
        return {"loss": self.layer(x).sum()}


class Resumed(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_local_process_zero:
            with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
                f.write(f"{state.global_step or ''}\n")


arguments = transformers.TrainingArguments(
    output_dir=folder, use_cpu=True, ddp_backend="gloo", max_steps=100_000, save_strategy="no",
    per_device_train_batch_size=1, report_to=[], logging_strategy="no", disable_tqdm=True,
)
trainer = transformers.Trainer(
    Model(), arguments, train_dataset=[{"x": torch.ones(1)}] * 64,
    callbacks=[SaveOnRequest(), Report(), Resumed()],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
