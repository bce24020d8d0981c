"""Hyperparameter search: trials from the same weights, evaluated on held-out scenarios, in one Optuna study."""
