# /// script
# requires-python = "==3.11.*"
# dependencies = ["tensorflow-federated==0.87.0"]
#
# [tool.uv]
# # What it asks for, 0.4.14, is no longer published.
# override-dependencies = ["jaxlib==0.4.13"]
# ///
# mypy: ignore-errors
"""Write federated EMNIST's digits as tensorflow-federated itself loads them.

No module of this package, which cannot share an environment with tensorflow-federated:
``flwr-fbo data export-emnist`` starts it by ``uv run --script``.
"""

import sys

import numpy as np
import tensorflow_federated as tff


def main(cache_dir: str, num_writers: int, output: str) -> None:
    """Write the first writers, of those with digits in both halves, to an .npz file."""
    halves = tff.simulation.datasets.emnist.load_data(cache_dir=cache_dir)
    writers = sorted(set.intersection(*(set(half.client_ids) for half in halves)))
    if len(writers) < num_writers:
        sys.exit(f"There are {len(writers)} writers, not {num_writers}.")
    rows = [
        # In TFF's images 1.0 is the background.
        (1 - example["pixels"], example["label"], writer, bool(is_test))
        for writer in writers[:num_writers]
        for is_test, half in enumerate(halves)
        for example in half.create_tf_dataset_for_client(writer).as_numpy_iterator()
    ]
    images, labels, ids, is_test = map(np.array, zip(*rows, strict=True))
    np.savez_compressed(
        output, images=images, labels=labels, writer=ids, is_test=is_test
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
