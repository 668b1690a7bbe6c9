#!/usr/bin/env bash
# Runs in the guest (`make bench-rdma`): the pool over rdma beside perftest, then the layers between the two.
set -euo pipefail
export COLUMNS=132
python -m pykvpool bench --quick --fabric rdma --rounds "${1:-5}" --rdma-device rxeA --rdma-node-device rxeB
python benchmarks/rdma_layers.py --device rxeA --owner-device rxeB --rounds "${1:-5}"
