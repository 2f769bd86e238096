"""What an agent believes: random features, weight posteriors, Gaussian process."""
