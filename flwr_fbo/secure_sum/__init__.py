"""Secure sums of the sites' integers: the server learns the sum and nothing else.

The protocol is that of Bonawitz et al. ("Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017) with its consistency check, on the
sparse graph of Bell et al. ("Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead", CCS 2020) when there are more than 50 members.
"""
