"""Training and tuning in memory, without Prefect or MLflow: trainer, callbacks, diagnostics."""
