"""Fed-GO-UCB: bandits whose reward is a neural network."""
