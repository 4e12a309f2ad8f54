import statistics
import time

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        self.ends = []

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, index):
        self.log("loss", self.training_step(batch, index))

    def on_train_batch_end(self, *_):
        self.ends.append(time.perf_counter())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


data = DataLoader(TensorDataset(torch.randn(4800, 64), torch.randn(4800, 1)), batch_size=32)
module = Module()
L.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
).fit(module, data, data)
print(
    "own step:", statistics.median(b - a for a, b in zip(module.ends, module.ends[1:])) * 1e3, "ms"
)
