"""How fast the package is, beside its peers: `make bench`."""
