"""A site's promises: what may leave, its limits, its charges and their proofs."""
