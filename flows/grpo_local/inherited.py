"""Variables that Prefect's and MLflow's servers get from the shell in which they are started.

This is a list of allowed names, because a list of secrets would never be complete: a shell has keys of model servers,
hubs, buckets and tools that neither server needs. If somebody runs code in a server, the code can read each variable
that the server got. Each server also gets all variables of its own settings, PREFECT_* or MLFLOW_*.
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
