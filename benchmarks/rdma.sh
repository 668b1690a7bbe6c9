#!/usr/bin/env bash
# Runs in the guest (`make bench-rdma`): the pool over rdma beside perftest, then the layers between the two.
set -euo pipefail
python -m pykvpool bench --quick --fabric rdma --rounds "${1:-5}" --rdma-device rxeA --rdma-node-device rxeB \
    | cat # the guest's console is a terminal of 80 columns; a pipe has room for the tables
python benchmarks/rdma_layers.py --device rxeA --owner-device rxeB --rounds "${1:-5}"
