"""The data, the model, and DP-SGD at a site: scikit-learn's digits, a small network."""

import math
from functools import cache

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

# A round draws each example five times, with probability 0.2: Poisson batches.
NUM_STEPS = 5


class Net(nn.Module):  # type: ignore[misc]
    """A network with one hidden layer, for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.linear = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return ten numbers an image, the largest for its most likely class."""
        return self.linear(functional.relu(self.hidden(images)))


@cache
def _split() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits of all sites, and those of the test."""
    X, y = load_digits(return_X_y=True)
    images = torch.tensor(X / 8 - 1, dtype=torch.float32)
    X_train, X_test, y_train, y_test = train_test_split(
        images, torch.tensor(y), test_size=297, random_state=0, stratify=y
    )
    return TensorDataset(X_train, y_train), TensorDataset(X_test, y_test)


def load_test() -> DataLoader:
    """Return the digits that no site has."""
    return DataLoader(_split()[1], batch_size=500)


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    """Return a site's digits: to train on, in five batches, and to evaluate on."""
    images, labels = _split()[0][partition_id::num_partitions]
    num_train = 2 * len(labels) // 3
    train = TensorDataset(images[:num_train], labels[:num_train])
    evaluate = TensorDataset(images[num_train:], labels[num_train:])
    loader = DataLoader(train, math.ceil(num_train / NUM_STEPS))
    # With fewer batches each example is drawn more often than the noise is for.
    if len(loader) != NUM_STEPS:
        text = f"{num_train} examples make {len(loader)} batches, not {NUM_STEPS}."
        raise ValueError(text)
    return loader, DataLoader(evaluate, len(evaluate))


def train(
    net: nn.Module, loader: DataLoader, rate: float, clip_norm: float, noise: float
) -> None:
    """Train the model for a round of DP-SGD; ``noise`` is its noise multiplier."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    net.train()
    private_net, private_optimizer, batches = PrivacyEngine().make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=clip_norm,
    )
    for images, labels in batches:
        private_optimizer.zero_grad()
        functional.cross_entropy(private_net(images), labels).backward()
        private_optimizer.step()


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Return the model's mean loss, and the share of images that it gets right."""
    loss, num_right = 0.0, 0
    net.eval()
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += functional.cross_entropy(outputs, labels, reduction="sum").item()
            num_right += int((outputs.argmax(1) == labels).sum())
    return loss / len(loader.dataset), num_right / len(loader.dataset)
