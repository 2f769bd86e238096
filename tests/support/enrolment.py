"""What `tests/strategies/test_enrolment.py` and others share."""

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from flwr_fbo import InProcessGrid
from tests.support.federation import (
    NUM_AGENTS,
    numpy_app,
)


class EndedError(Exception):
    """The run is over, in the middle of a study."""


class KeyGrid(InProcessGrid):
    """Whose nodes have keys, by node id; the run may end in a round."""

    ends_in = ""

    def __init__(
        self, num_nodes: int, app: ClientApp | None = None, **options: Any
    ) -> None:
        super().__init__(app or numpy_app(), num_nodes, **options)
        self.asked: list[int] = []
        self.keys = dict(zip(self.contexts, KEYS, strict=False))

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        self.asked += [message.metadata.dst_node_id for message in asked]
        if self.ends_in in {message.metadata.group_id for message in asked} - {""}:
            raise EndedError
        return super().send_and_receive(asked, timeout=timeout)

    def get_nodes(self) -> Any:
        return [
            NodeInfo(node_id=node, public_key=self.keys[node])
            for node in self.get_node_ids()
        ]


def pem_of(key: Any) -> bytes:
    """Return a public key as Flower has it."""
    return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


KEYS = [
    pem_of(ec.generate_private_key(ec.SECP384R1()).public_key())
    for _ in range(NUM_AGENTS + 1)
]
