"""Secure sums of the sites' messages: the server learns the noisy sum, and no message.

The rest of the package imports seven names, and only these:

`SecureAggregation`
    The server's option. Its ``collector`` has the sites sum, exchange by exchange.
`SecureSums`, `BlockSums`
    What server and sites agree on: groups, noise, and terms of each sum; for a tuning
    study's messages, and for a bandit's blocks.
`SumRequest`
    What one site is asked in one exchange. The caller sends it, whatever the message.
`SumIdentity`
    A site: its key, the roster that it pins, and its reply to a request.
`SigningKey`, `Roster`
    These, as they are made and shown before there is a study.

A caller on the server passes `SecureCollector.collect` what is summed, a function that
sends requests, and one that puts the open sum on disk. A caller at a site passes
`SumIdentity.reply` its journal, the request, and a function that returns the vector.
Nothing here knows Flower, or what a message is about.

The protocol is that of Bonawitz et al. ("Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017) with its consistency check, on the
sparse graph of Bell et al. ("Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead", CCS 2020) when there are more than 50 members.
"""

from flwr_fbo._common.public import public_names

# On first use: a client process loads what its message needs.
__getattr__, __dir__, __all__ = public_names(__name__, __file__)
