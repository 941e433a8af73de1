#!/bin/sh
# Installs what building and testing need from Debian's packages: only what is
# missing, and nothing at all when nothing is. As root, or through sudo; where
# neither works it says in one line what is missing and fails.
#
#   sh test/setup.sh            what make test and make demo need, but for what is large
#   sh test/setup.sh NAME...    only these, named as in the table below
set -u

# What each is needed for stands in README.md. A name is a command, or a file. What is large,
# or needed by the tests of test/ui or a cluster only, is installed for who names it: make
# test and make e2e do.
table='
make                                make
git                                 git
nft                                 nftables
iptables-legacy                     iptables
ip                                  iproute2
sysctl                              procps
modprobe                            kmod
strace                              strace
bpftool                             bpftool
/etc/ssl/certs/ca-certificates.crt  ca-certificates
chromium                            chromium  named
runc                                runc      named
conntrack                           conntrack named
qemu-system-x86_64                  qemu-system-x86  named
buildah                             buildah   named
mmdebstrap                          mmdebstrap  named
'

say() { echo "setup: $*" >&2; }

# Debian keeps the tools of the network outside the path of users.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

present() {
	case $1 in
	/*) [ -s "$1" ] ;;
	*) command -v "$1" >/dev/null 2>&1 ;;
	esac
}

# missing [NAME...] prints the packages that are not there.
missing() {
	echo "$table" | while read -r name package only; do
		[ -n "$name" ] || continue
		[ "$only" != named ] || [ $# != 0 ] || continue
		case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
		present "$name" || echo "$package"
	done
}

if ! command -v go >/dev/null 2>&1; then
	say "go is missing: install Go $(sed -n 's/^go //p' "$(dirname "$0")/../go.mod") or later and put it in PATH"
	exit 1
fi
packages=$(missing "$@" | tr '\n' ' ')
packages=${packages% }

# run names how to become root: nothing, or sudo.
run=
if [ "$(id -u)" != 0 ]; then
	if sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null 2>&1 && sudo -v; }; then
		run=sudo
	else
		say "missing: ${packages:+$packages, and }root (network namespaces need it): run as root, or as a user who may use sudo"
		exit 1
	fi
fi
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	say "missing: $packages (Debian's names), and there is no apt-get to install them"
	exit 1
fi
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
say "installing $packages"
# Lists may be too old for what they name: update first, and only now.
# shellcheck disable=SC2086 # run and packages are lists
if ! { $run env DEBIAN_FRONTEND=noninteractive apt-get -q update &&
	$run env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $packages; } >"$log" 2>&1 </dev/null; then
	tail -n 20 "$log" >&2
	say "missing: $packages (apt-get could not install them, see above)"
	exit 1
fi
left=$(missing "$@" | tr '\n' ' ')
if [ -n "$left" ]; then
	say "missing: $left(installed, but still not found in PATH)"
	exit 1
fi
