"""FedWarmStart: a released function gives later sites a start."""
