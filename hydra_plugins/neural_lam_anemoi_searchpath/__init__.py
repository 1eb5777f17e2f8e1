"""Lets Hydra find this package's configurations wherever ``anemoi-training`` is started."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from neural_lam_anemoi.adapters.anemoi.resolvers import register_resolvers


class NeuralLamAnemoiSearchPathPlugin(SearchPathPlugin):
    """Appends our configurations after everybody else's, and makes our resolvers known to OmegaConf."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append ``adapters/anemoi/config``."""
        register_resolvers()
        search_path.append("neural-lam-anemoi", "pkg://neural_lam_anemoi.adapters.anemoi.config")
