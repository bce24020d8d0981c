"""MLflow's server behind a login: the calls that it answers, and the places of files."""
