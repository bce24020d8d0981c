"""Variables that Prefect's and MLflow's servers get from the shell in which they are started.

The list says what may pass, because the names of secrets are without end: a shell has keys of model servers, hubs,
buckets and tools that neither server needs, and whoever runs code in a server has all that it was given. Each server
also gets its own settings, PREFECT_* or MLFLOW_*, in which its users set what this list does not know.
"""

from __future__ import annotations

_PROCESS = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("LANG", "LANGUAGE", "LC_*"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "MALLOC_*", "*_NUM_THREADS"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX"),
)
_NETWORK = (
    *(name for kind in ("HTTP", "HTTPS", "ALL", "NO") for name in (f"{kind}_PROXY", f"{kind.lower()}_proxy")),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_POSTGRESQL = (
    *("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGPASSWORD", "PGPASSFILE", "PGDATABASE", "PGSERVICE"),
    *("PGSERVICEFILE", "PGSSL*", "PGOPTIONS", "PGCONNECT_TIMEOUT"),
)
INHERITED = (*_PROCESS, *_NETWORK, *_POSTGRESQL, "GRPO_HOME", "GRPO_DEBUG", "DO_NOT_TRACK")
"""Patterns of the names that both servers get. PREFECT_* or MLFLOW_* comes in addition."""
BUCKETS = ("AWS_*", "AZURE_*", "GOOGLE_*")
"""Settings and keys of buckets, for MLflow's server if other machines share its database, and keep artifacts there."""
