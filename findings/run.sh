#!/usr/bin/env bash
# Run findings, all of them or those named: `make findings`, `findings/run.sh NAME ...`. Exit 1 if any behaviour has changed.
set -uo pipefail
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- $(ls ./*.sh | sed 's|./||; s|\.sh$||' | grep -v '^run$')
changed=()
for name in "$@"; do
  echo "== $name"
  bash "$name.sh" || changed+=("$name")
done
echo "$(($# - ${#changed[@]})) of $# as recorded${changed[*]:+; changed: ${changed[*]}}"
[ ${#changed[@]} -eq 0 ]
