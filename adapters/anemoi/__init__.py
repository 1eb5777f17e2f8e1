"""Anemoi: the networks as Anemoi models (models.py), its checkpoints (checkpoint.py)."""
