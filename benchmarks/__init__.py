"""How fast the package is, beside its peers: `make bench`.

Besides, `benchmarks.calls` counts the function calls of a round, and
`benchmarks.digests` compares the studies of two versions.
"""
