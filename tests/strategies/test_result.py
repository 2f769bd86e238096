"""What a study gives back."""

import math
from dataclasses import replace

import numpy as np

from flwr_fbo import InProcessGrid
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.study.callbacks import Round
from flwr_fbo.tuning import DPFTSDESettings
from flwr_fbo.tuning.search.recommendation import Recommendation
from tests.support.federation import (
    AGENT,
    NUM_AGENTS,
    SPACE,
    numpy_app,
    objective_of,
    strategy,
)


def test_the_result_of_a_study() -> None:
    study = strategy()
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    assert result.privacy_spent == study.privacy_spent
    assert result.privacy_spent is not None
    assert result.privacy_spent.num_releases == 3
    last = result.privacy_spent.epsilon
    epsilons = [r.epsilon for r in result.rounds]
    assert result.rounds == [
        Round(r, NUM_AGENTS, 0, 0, 0, epsilon, release=r if r < 4 else 0)
        for r, epsilon in zip((1, 2, 3, 4), epsilons, strict=True)
    ]
    assert None not in epsilons
    assert epsilons[0] != epsilons[2] == epsilons[3] == last  # 3 releases
    np.testing.assert_array_equal(result.arrays["0"].numpy(), study.server.vectors)
    text = repr(result)
    assert text.startswith(str(result.recommendation))
    assert f"Privacy spent in 3 releases: epsilon {last:.3f} per client" in text
    assert "Array" not in text


def test_the_recommendation_maximises_what_was_released() -> None:
    continuous = {name: SPACE[name] for name in ("x", "C")}
    agent = replace(AGENT, num_candidates=1000)
    study = strategy(space=continuous, agent=agent)
    assert repr(study.recommendation) == repr(Recommendation())  # its score is NaN
    features = agent.shared_features(2, study.study.feature_seed)
    vectors = 100.0 * np.random.default_rng(0).standard_normal((4, 30))
    study.plan(3)
    facts = study.server.release.facts(0)
    study.server.ledger.append(LedgerRow(0, facts, vectors))
    regions = study.study.space.sub_regions(4)
    params = study.recommendation.params
    assert params is not None
    best = study.study.space.to_unit(params)[None]
    value = features.function(best, vectors[regions.index(best)])[0]
    x = np.random.default_rng(1).random((2000, 2))
    values = features.function(x, vectors[regions.index(x)])
    assert value > values.max()


def test_without_noise_the_recommendation_is_good() -> None:
    """With smooth shared features the released mean points at the optimum."""
    smooth = DPFTSDESettings(
        num_initial=15, lengthscale=0.4, num_features=60, regularization=1e-3
    )
    study = strategy(
        agent=smooth,
        noise_multiplier=0.0,
        sampling_probability=1.0,
        clip_norm=math.inf,
    )
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=6)
    assert result.recommended is not None

    def mean(params: dict[str, object]) -> float:
        return float(np.mean([objective_of(n)(params) for n in range(NUM_AGENTS)]))

    space, rng = study.study.space, np.random.default_rng(0)
    random = [mean(space.from_unit(x)) for x in rng.random((500, 3))]
    assert mean(result.recommended) > np.quantile(random, 0.8)
