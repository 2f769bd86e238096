"""The names that others import: the one list of them, which ``__init__.py`` reads."""

from .aggregation import SecureAggregation as SecureAggregation
from .block_sums import BlockSums as BlockSums
from .site import SumIdentity as SumIdentity
from .sums import SecureSums as SecureSums
from .terms import SumRequest as SumRequest
