"""Peer-to-peer FedUCB: the server only forwards messages."""
