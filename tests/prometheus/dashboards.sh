#!/usr/bin/env bash
# Whether the dashboards are what Grafana's own types say (dashboards.py). Needs Python 3.11 or newer with venv, and PyPI the first time;
# without Python says so and checks nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# Types of Grafana 10.1; what is before the ! is when they were generated.
package='grafana-foundation-sdk==1769699998!10.1.0 --hash=sha256:d131ffe49057fb669ba31ce7e28a303c96b3aecf4332b20de33cfa55110d498c'
venv=${LOCKSTEP_CACHE:-$HOME/.cache/lockstep}/grafana-foundation-sdk/1769699998-10.1.0
if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "dashboards: skipped, there is no Python 3.11 with venv" >&2
  exit
fi
if ! "$venv/bin/python" -c 'import grafana_foundation_sdk' 2>/dev/null; then
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --requirement <(echo "$package")
fi
"$venv/bin/python" tests/prometheus/dashboards.py config/components/dashboards/*.json
