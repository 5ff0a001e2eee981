"""The one place that looks at which kind of drafter was asked for."""

from deployments.lm.drafting.ngram import NgramSettings, NgramStrategy
from deployments.lm.drafting.noise import NoiseSettings, NoiseStrategy
from deployments.lm.drafting.oracle import OracleSettings, OracleStrategy
from deployments.lm.drafting.strategy import Strategy

type StrategySettings = NgramSettings | NoiseSettings | OracleSettings


def build_strategy(settings: StrategySettings, /) -> Strategy:
    """Makes the drafter that `settings` describes.

    Raises:
        ConfigError: a file the settings name cannot be used.
    """
    match settings:
        case NgramSettings():
            return NgramStrategy(settings)
        case NoiseSettings():
            return NoiseStrategy(settings)
        case OracleSettings():
            return OracleStrategy(settings)
