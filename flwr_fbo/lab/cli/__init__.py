"""The commands about experiments, data sets and audits."""
