"""The data and the model: scikit-learn's digits, and a small CNN of them."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):  # type: ignore[misc]
    """Two convolutions and a linear layer, for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.linear = nn.Linear(16 * 2 * 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return ten numbers an image, the largest for its most likely class."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        return self.linear(hidden.flatten(1))


@cache
def _split() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits of all sites, and those of the test."""
    X, y = load_digits(return_X_y=True)
    images = torch.tensor(X / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8)
    X_train, X_test, y_train, y_test = train_test_split(
        images, torch.tensor(y), test_size=500, random_state=0, stratify=y
    )
    return TensorDataset(X_train, y_train), TensorDataset(X_test, y_test)


def load_test() -> DataLoader:
    """Return the digits that no site has."""
    return DataLoader(_split()[1], batch_size=500)


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader, DataLoader]:
    """Return a site's digits: to train on, and to evaluate on.

    The order of the batches does not depend on what was drawn before.
    """
    images, labels = _split()[0][partition_id::num_partitions]
    num_train = 2 * len(labels) // 3
    train = TensorDataset(images[:num_train], labels[:num_train])
    evaluate = TensorDataset(images[num_train:], labels[num_train:])
    order = torch.Generator().manual_seed(partition_id)
    return (
        DataLoader(train, batch_size, shuffle=True, generator=order),
        DataLoader(evaluate, batch_size),
    )


def train(net: nn.Module, loader: DataLoader, num_epochs: int, rate: float) -> float:
    """Train the model by gradient descent; return its mean loss in the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    net.train()
    for _ in range(num_epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader)


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
