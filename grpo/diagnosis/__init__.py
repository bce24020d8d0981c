"""Diagnosis of a run that does not learn: measurements of its stored episodes and metrics, and ranked causes."""
