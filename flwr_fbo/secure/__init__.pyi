"""The names that others import: the one list of them, which ``__init__.py`` reads."""

from .aggregation_option import SecureAggregation as SecureAggregation
from .block_sums import BlockSums as BlockSums
from .roster import Roster as Roster
from .roster import SigningKey as SigningKey
from .site_sums import SumIdentity as SumIdentity
from .sum_settings import SecureSums as SecureSums
from .terms import SumRequest as SumRequest
