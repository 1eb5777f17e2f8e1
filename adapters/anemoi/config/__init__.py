"""Hydra configurations: ``anemoi-training train --config-name=neural_lam``."""
