#!/usr/bin/env bash
# What nixl.sh and mooncake.sh run once the library is there: the suites that every transport must
# pass, two servers, a router before them, and throughput. CARGO names another cargo.
#
# usage: tests/peers/on_transport.sh nixl|mooncake [throughput arguments]
set -euo pipefail
transport=$1
shift
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
"$cargo" test --release -p pb-transfer --test transfer -- conformance failures mooncake
"$cargo" test --release -p prefillbench --test serve_roles -- two_processes
"$cargo" build --release -p prefillbench
tests/peers/one_prefill_one_decode.py --transport "$transport"
code=0
tests/peers/one_prefill_one_decode.py --transport "$transport" --plant || code=$?
if [ "$code" -ne 1 ]; then
    echo "altered prompts were not noticed: $code" >&2
    exit 1
fi
"$cargo" run --release -p pb-transfer --example throughput -- "$@"
