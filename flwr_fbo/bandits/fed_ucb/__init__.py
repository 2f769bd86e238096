"""FedUCB: the server adds up private sums."""
