"""neural-lam's own test suite, run on its own classes and on ours: ``make peer-test``."""
