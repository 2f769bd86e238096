"""Linear bandits: what FedUCB and its peer-to-peer form share."""
