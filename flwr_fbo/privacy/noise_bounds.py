"""Bounds on the noise of private running sums: rho_min, rho_max, kappa.

A linear bandit on noisy sums V = G + N + shift I, u = b + h, with G = sum xx', b = sum
xy and N, h the noise of the d x d block and of the cross block, needs bounds that hold
for all releases at once with probability 1 - alpha (Shariff & Sheffet, 2018,
definition 3; Dubey & Pentland, 2020, definition 2):

    rho_min I <= N + shift I <= rho_max I,    ||h||_{(N + shift I)^-1} <= kappa.

The last follows from a bound on ||h||, which is of use by itself where V is observed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr_fbo._common.validation import require, require_fraction, require_int
from flwr_fbo.privacy.continual_settings import ContinualSettings


@dataclass(frozen=True)
class SpectralBounds:
    """Bounds on the noise of all releases at once.

    Attributes
    ----------
    shift : float
        Shift that is added to the diagonal of the d x d block, after the noise.
    rho_min, rho_max : float
        On the eigenvalues of noise and shift together.
    kappa : float
        On the norm of the cross block's noise, in the inverse of these.
    cross_norm : float
        On the Euclidean norm of the cross block's noise.
    """

    shift: float
    rho_min: float
    rho_max: float
    kappa: float
    cross_norm: float

    @classmethod
    def of(cls, operator_norm: float, cross_norm: float) -> SpectralBounds:
        """Return the bounds that follow with a shift of twice the operator norm."""
        # N + 2 ||N|| I lies between ||N|| I and 3 ||N|| I, so positive definite.
        # So the inverse of its square root stretches h by 1 / sqrt(||N||) at most.
        kappa = cross_norm / math.sqrt(operator_norm)
        rho_min, rho_max = operator_norm, 3 * operator_norm
        return cls(2 * operator_norm, rho_min, rho_max, kappa, cross_norm)


def agent_bounds(
    settings: ContinualSettings, alpha: float, num_agents: int = 1
) -> SpectralBounds:
    """Return bounds that hold for each of M agents' own noise, in all n releases.

    As `sum_bounds`, with the union over releases and agents: p = alpha / (2 n M).
    """
    _check(settings, alpha, num_agents)
    # Two bounds for each of n releases of M agents: a union over 2 n M events.
    p = alpha / (2 * settings.union(1) * num_agents)
    return _bounds(settings, settings.largest_std(1), p)


def sum_bounds(
    settings: ContinualSettings,
    alpha: float,
    num_agents: int,
    num_synchronisations: int = 1,
) -> SpectralBounds:
    """Return bounds for the sum of M agents' noise, in all n releases.

    The shift is added once, by the server, to the sum: post-processing, which costs no
    privacy, where the paper has every agent add its own.

    A release's noise W has standard deviation s on the diagonal and s/sqrt(2) off it,
    with s = sqrt(M) times that of an agent. With probability 1 - p for each of the two,
    p = alpha / (2 n), or, where n is unknown, alpha / 2 times 6 / (pi k)^2 for
    synchronisation k, whose noise is that of the first k releases,

        ||N|| <= s (sqrt(2) c_d + z),    ||h|| <= s sqrt(q/2),

    where c_d is the mean norm of d unit normals, a little less than sqrt(d), z the
    upper p/2-quantile of the normal law, and q the upper p-quantile of chi-square with
    d degrees of freedom: the exact law of 2 ||h||^2 / s^2. *Proof of the first.*
    E<N, U>^2 = s^2 ||U||_F^2 for every symmetric U. So for unit vectors u and v the
    process X_u = u'Nu has

        E(X_u - X_v)^2 = s^2 ||uu' - vv'||_F^2 = 2 s^2 (1 - (u'v)^2)
                       <= 4 s^2 (1 - u'v) = 2 s^2 ||u - v||^2,

    which is E(Y_u - Y_v)^2 of Y_u = sqrt(2) s g'u with g ~ N(0, I). By the inequality
    of Sudakov and Fernique the largest eigenvalue, max_u X_u, has a mean of at most
    E max_u Y_u = sqrt(2) s E||g||. Its median is no larger than its mean, because it is
    convex in N (Kwapien, 1994); and because it is 1-Lipschitz in the Frobenius norm, in
    which N is isotropic with deviation s, it exceeds its median by more than s z with
    probability at most p/2 (Borell, 1975). The smallest eigenvalue is minus the largest
    of -N, which has the same law. (As Davidson & Szarek, 2001, theorem II.13, for
    Gaussian matrices without symmetry.)

    Parameters
    ----------
    settings : ContinualSettings
        Settings of every agent, with noise and either calibration: only the law counts.
    alpha : float
        In (0, 1): how likely any of the bounds may fail.
    num_agents : int
        M >= 1, whose noise is independent.
    num_synchronisations : int
        k >= 1; of effect where the number of releases is unknown.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    _check(settings, alpha, num_agents)
    k = num_synchronisations
    # The agents' noises are independent: their variances add up.
    std = math.sqrt(num_agents) * settings.largest_std(k)
    return _bounds(settings, std, alpha / (2 * settings.union(k)))


def _bounds(settings: ContinualSettings, std: float, p: float) -> SpectralBounds:
    from scipy.special import chdtri, ndtri, poch

    d = settings.dimension
    mean_norm = math.sqrt(2) * poch(d / 2, 0.5)  # of d unit normals
    # ||N|| <= s (sqrt(2) c_d + z) with z = -ndtri(p/2), and ||h|| <= s sqrt(q/2): see
    # `sum_bounds`. p/2 each for the largest and the smallest eigenvalue.
    operator_norm = std * float(math.sqrt(2) * mean_norm - ndtri(p / 2))
    cross_norm = std * math.sqrt(float(chdtri(d, p)) / 2)
    return SpectralBounds.of(operator_norm, cross_norm)


def paper_bounds(
    settings: ContinualSettings, alpha: float, num_agents: int
) -> SpectralBounds:
    """Return the bounds of Proposition 4 of Dubey & Pentland (2020), for one agent.

    Every agent shifts by 2 Lambda: rho_min = Lambda, rho_max = 3 Lambda, each with
    probability 1 - alpha / (2 n M), a union over releases and agents:

        Lambda = sqrt(32) m (L^2 + 1) log(4/delta) (4 sqrt(d) + 2 log(2 n M / alpha))
                 / epsilon,    m = 1 + ceil(log2 n).

    It is sqrt(2 m) (4 sqrt(d) + ..) times the noise with log(4/delta), as in Shariff &
    Sheffet (2018), where the sigma_N of the paper has log(2/delta): we take both as
    published. At epsilon = 1, delta = 0.1, d = 10, L = 1, n = 1e5, M = 100 and alpha =
    0.01 it is 41,680. kappa is the printed bound,

        kappa = sqrt(m (L^2 + 1) (sqrt(d) + 2 log(2 n M / alpha)) / (sqrt(2) epsilon)).

    The arguments are those of `sum_bounds`, with ``calibration="paper"``.
    """
    _check(settings, alpha, num_agents)
    is_paper = settings.calibration == "paper"
    require(is_paper, "calibration", settings.calibration, "'paper', for its bounds")
    m, d = settings.paper_num_levels, settings.dimension
    log_union = math.log(2 * settings.union(1) * num_agents / alpha)
    size = (settings.max_action_norm**2 + 1) / settings.epsilon
    noise = math.sqrt(32) * m * size * math.log(4 / settings.delta)
    operator_norm = noise * (4 * math.sqrt(d) + 2 * log_union)
    kappa = math.sqrt(m * size * (math.sqrt(d) + 2 * log_union) / math.sqrt(2))
    # `of` divides by this root again: kappa is then the printed bound.
    return SpectralBounds.of(operator_norm, kappa * math.sqrt(operator_norm))


def _check(settings: ContinualSettings, alpha: float, num_agents: int) -> None:
    has_noise, expected = settings.noise_std > 0, "finite, where noise is to be bounded"
    require(has_noise, "epsilon", settings.epsilon, expected)
    require_fraction("alpha", alpha)
    require_int("num_agents", num_agents, 1)
