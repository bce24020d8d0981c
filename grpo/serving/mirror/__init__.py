"""Mirror of the serving log in MLflow, and its erasure there."""
