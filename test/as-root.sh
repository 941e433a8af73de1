#!/bin/sh
# Runs a command as root: itself when we are, through sudo otherwise. sudo drops
# the environment, so what tests read is handed over by name. HOME is root's: what
# a test builds goes into root's cache, and nothing in the user's belongs to root.
[ "$(id -u)" = 0 ] && exec "$@"
for name in $(env | sed -n 's/^\(ONERULE_[A-Z0-9_]*\|CI\|GO[A-Z0-9]*\|HTTPS_PROXY\|TMPDIR\)=.*/\1/p'); do
	[ "$name" = GOCACHE ] && continue
	eval "value=\$$name"
	# shellcheck disable=SC2154 # set by eval
	set -- "$name=$value" "$@"
done
exec sudo -- env "PATH=$PATH" "$@"
