"""How fast the package is, beside its peers: `make bench`.

Besides, `benchmarks.digests` compares the studies of two versions.
"""
