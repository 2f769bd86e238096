"""Models of an agent: random features, weight posteriors, Gaussian process."""
