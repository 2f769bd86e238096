"""The methods by which new agents learn from others that have finished."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import ConfigDict

from flwr_fbo._common import pictures
from flwr_fbo._common.validation import require, require_bool, require_int
from flwr_fbo.algorithms.dp_fts_de.settings import Follow
from flwr_fbo.algorithms.fts.settings import FTSSettings
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.lab.baselines.transfer_settings import RGPESettings, TAFSettings
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.methods import Method, by_name
from flwr_fbo.lab.tasks.base import STRICT

_CONTROLS = ("alone", "random", "noise-only")


@dataclass(frozen=True)
class Messages:
    """Settings of the messages that finished agents send.

    Attributes
    ----------
    num_features : int
        M.
    lengthscale, regularization : float
        l and lambda, as in the authors' code for real data: see `FTSSettings`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_features: int = 100
    lengthscale: float = 0.01
    regularization: float = 1e-6

    def __post_init__(self) -> None:
        require_int("num_features", self.num_features, 1)


@dataclass(frozen=True)
class TransferCurve:
    """A curve of a published figure: a method, and what it sets otherwise.

    What is None is as in the experiment.

    Attributes
    ----------
    label : str
        For tables and figures.
    method : {"fts", "rgpe", "taf"}
        The first one comes with a noise-only control of its own.
    num_agents : int, optional
        N: messages are of the first so many agents alone.
    num_features : int, optional
        M.
    num_observations : int, optional
        t_n of the agents that send, their initial points included.
    follow : str, optional
        1 - p_t of ``"fts"``: see `FTSSettings`.
    concurrent : bool
        Whether the agents that send go on, and send again before each query of a
        target, which follows their newest messages (FTS, sections 3.1 and 5). Of
        ``"fts"``. False: they have finished.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    label: str
    method: Literal["fts", "rgpe", "taf"]
    num_agents: int | None = None
    num_features: int | None = None
    num_observations: int | None = None
    follow: Follow | None = None
    concurrent: bool = False

    def __post_init__(self) -> None:
        require_bool("concurrent", self.concurrent)
        for name in ("num_agents", "num_features", "num_observations"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 1)
        for name in ("follow", "concurrent"):
            value = getattr(self, name)
            ok = not value or self.method == "fts"
            require(ok, name, value, f"left out, with method={self.method!r}")


_AS_IT_IS = TransferCurve("", "fts")


@dataclass(frozen=True)
class TransferMethod(Method):
    """One curve of an experiment in which targets learn from others.

    Attributes
    ----------
    settings : SearchSettings
        Of the targets and of those who send; those of the experiment are put in.
    informed : bool
        Whether targets receive messages.
    zeroed : bool
        Whether the messages are of agents that know nothing.
    base : str
        The method that it is a variant of; itself unless given.
    curve : TransferCurve
        What it sets otherwise.
    """

    settings: SearchSettings
    informed: bool = True
    zeroed: bool = False
    base: str = field(default="", kw_only=True)
    curve: TransferCurve = field(default=_AS_IT_IS, kw_only=True)

    @property
    def releases(self) -> bool:
        """Whether anything of the others' data is used."""
        return self.informed and not self.zeroed


_FTS, _SIMILAR = FTSSettings(), FTSSettings(weighting="similarity")
_LEARNER = partial(TransferMethod, controls=_CONTROLS)
METHODS = by_name(
    TransferMethod("alone", "TS", _FTS, informed=False, look=looks.ALONE),
    TransferMethod(
        "random", "random", RandomSearchSettings(), informed=False, look=looks.RANDOM
    ),
    _LEARNER("fts", "FTS", _FTS, noise_only="noise-only", look=looks.OURS),
    TransferMethod(
        "fts-similar",
        "FTS, similarity",
        _SIMILAR,
        controls=(*_CONTROLS, "similar-noise-only"),
        noise_only="similar-noise-only",
        look=(pictures.SKY, "--", "d"),
    ),
    _LEARNER("rgpe", "RGPE", RGPESettings(), look=looks.OPEN),
    _LEARNER("taf", "TAF (0.5)", TAFSettings(), look=(pictures.PINK, "-.", "x")),
    _LEARNER(
        "taf-narrow",
        "TAF (0.1)",
        TAFSettings(bandwidth=0.1),
        look=(pictures.ORANGE, ":", "P"),
    ),
    TransferMethod(
        "noise-only", "noise-only", _FTS, zeroed=True, look=looks.UNINFORMED
    ),
    TransferMethod("similar-noise-only", "similar, noise-only", _SIMILAR, zeroed=True),
)


def methods_of(curves: dict[str, TransferCurve]) -> dict[str, TransferMethod]:
    """Return the methods that draw curves, and noise-only controls of FTS, by name."""
    return by_name(*(m for name, c in curves.items() for m in _methods_of(name, c)))


def _methods_of(name: str, curve: TransferCurve) -> list[TransferMethod]:
    base = METHODS[curve.method]
    method = replace(
        base, name=name, label=curve.label, base=base.name, curve=curve, look=None
    )
    if curve.method != "fts":
        return [method]
    control = f"{name}-noise-only"
    return [
        replace(method, controls=(*_CONTROLS, control), noise_only=control),
        TransferMethod(
            control,
            f"{curve.label}, noise-only",
            base.settings,
            zeroed=True,
            base="noise-only",
            curve=curve,
        ),
    ]
