#!/bin/sh
# Work pools, GPU slots and the deployments of prefect.yaml, on the server that PREFECT_API_URL names. What is there
# already is left as it is, or brought up to date: run it again after each change.
set -eu
for pool in cpu gpu; do
    prefect work-pool inspect "$pool" >/dev/null 2>&1 || prefect work-pool create "$pool" --type process
done
prefect gcl inspect gpu >/dev/null 2>&1 || prefect gcl create gpu --limit "${GPU_SLOTS:-1}"
prefect --no-prompt deploy --all
