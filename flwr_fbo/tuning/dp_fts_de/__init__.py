"""DP-FTS-DE: Thompson sampling with distributed exploration."""
