"""neural-lam: drop-in networks (predictors.py), its checkpoints (checkpoint.py)."""
