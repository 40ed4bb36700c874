#!/usr/bin/env bash
# The NIXL transport on a real NIXL, over the loopback: the suites that every transport must pass,
# servers that hand requests over by it, then its throughput beside the others. No GPU is needed.
#
# usage: tests/peers/nixl.sh DIR [throughput arguments, for example --repeats 5]
#
# Puts NIXL's wheel into DIR unless it is there (0.3 GB). The library is loaded at run time.
set -euo pipefail
dir=${1:?usage: nixl.sh DIR [throughput arguments]}
shift
find_library() { find "$dir" -name libnixl_capi.so 2>/dev/null | head -1; }
if [ -z "$(find_library)" ]; then
    # Only the libraries in it are used, so any Python's wheel will do.
    python3 -m pip -q install --no-deps --target "$dir" --only-binary=:all: \
        --python-version 3.12 nixl-cu13
fi
PB_NIXL_LIBRARY=$(realpath "$(find_library)")
# Those beside the library, whose dependencies it shares.
NIXL_PLUGIN_DIR=$(dirname "$PB_NIXL_LIBRARY")/plugins
export PB_NIXL_LIBRARY NIXL_PLUGIN_DIR
echo "NIXL: $PB_NIXL_LIBRARY, plugins in $NIXL_PLUGIN_DIR" >&2
test -e "$NIXL_PLUGIN_DIR/libplugin_UCX.so"
exec "$(dirname "$0")/on_transport.sh" nixl "$@"
