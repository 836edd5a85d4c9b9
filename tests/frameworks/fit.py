import glob
import os
import signal
import time

import lightning
import torch

# docs/progress.md: Report progress
folder = os.environ["CHECKPOINTS"]
# docs/how-to/checkpoint-on-request.md: Lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def training_step(self, batch, _):
        time.sleep(0.05)
        return self.layer(batch).sum()

    def on_train_start(self):
        if self.trainer.is_global_zero:
            with open(f"{folder}/resumed.{os.environ['LOCKSTEP_ATTEMPT']}", "w") as f:
                f.write(f"{self.trainer.global_step or ''}\n")


trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_steps=100_000,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[SaveOnRequest()],
)
files = sorted(glob.glob(f"{folder}/*.ckpt"), key=os.path.getmtime)
data = torch.utils.data.DataLoader(torch.ones(64, 1))
trainer.fit(Module(), data, ckpt_path=files[-1] if files else None)
