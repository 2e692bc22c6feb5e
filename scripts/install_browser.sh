#!/usr/bin/env bash
# Installs the browser that the slow tests of the viewer look through, where there is none.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
run="apt-get install -y --no-install-recommends chromium"
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "setup: installing chromium for the tests that need a browser"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $run >/dev/null; } || echo "setup: apt-get failed; tests that need a browser will say so"
elif command -v apt-get >/dev/null; then
  echo "setup: tests that need a browser will fail without one; type: sudo $run"
else
  echo "setup: tests that need a browser will fail without one; install Chromium"
fi
