#!/usr/bin/env bash
# The Mooncake transport on a real Mooncake transfer engine, over the loopback: the suites that
# every transport must pass, servers that hand requests over by it, then its throughput beside the
# others. No GPU is needed.
#
# usage: tests/peers/mooncake.sh DIR [throughput arguments, for example --repeats 5]
#
# Puts a virtual environment with Mooncake's wheel into DIR unless it is there (0.2 GB). The wheel
# uses libibverbs1, librdmacm1 and libnuma1 of the system, and Python 3.9 or newer: PYTHON names one.
set -euo pipefail
dir=${1:?usage: mooncake.sh DIR [throughput arguments]}
shift
if ! "$dir/bin/python" -c 'import mooncake' 2>/dev/null; then
    "${PYTHON:-python3}" -m venv "$dir"
    "$dir/bin/pip" -q install --no-deps mooncake-transfer-engine-non-cuda
fi
"$dir/bin/python" -c 'import mooncake.engine'
# Not resolved: it is this path that makes Python find the environment.
PB_MOONCAKE_PYTHON=$(realpath "$dir")/bin/python
export PB_MOONCAKE_PYTHON
echo "Mooncake: $PB_MOONCAKE_PYTHON" >&2
exec "$(dirname "$0")/on_transport.sh" mooncake "$@"
