#!/bin/sh
# Builds a Go tool and prints the path of its executable, which Go keeps in its
# cache. That takes minutes the first time, so it says every half minute that it
# is still at it.
#
#   sh test/tools.sh FOLDER TOOL     FOLDER has the go.mod that names the tool
set -u
folder=$1 tool=$2
CGO_ENABLED=0 go -C "$folder" tool -n "$tool" &
build=$!
trap 'kill "$build" 2>/dev/null' INT TERM
waited=0
while kill -0 "$build" 2>/dev/null; do
	[ "$waited" = 5 ] && echo "building $tool: some minutes the first time" >&2
	[ "$waited" -gt 5 ] && [ $((waited % 30)) = 0 ] && echo "building $tool: ${waited} s" >&2
	sleep 1
	waited=$((waited + 1))
done
wait "$build" || {
	echo "tools: could not build $tool, see above" >&2
	exit 1
}
