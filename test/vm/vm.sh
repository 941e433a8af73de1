#!/bin/sh
# Runs the tests of one package on another Linux kernel, one of Debian's, in a virtual
# machine without network or disk. Kernels are downloaded and unpacked below bin/vm, never
# installed. The exit status is that of the tests; 124: out of time; 125: no answer.
#
#   sh test/vm/vm.sh 6.1 ./bpf [FLAG OF GO TEST...]
#
# VM_SECONDS is how long it may take, VM_MEMORY how many MiB it has. Each instruction is
# emulated: VM_ACCEL=kvm is far quicker where the host's kernel lets guests of any kind run.
set -eu
: "${VM_SECONDS:=900}" "${VM_MEMORY:=1024}" "${VM_ACCEL:=tcg,thread=multi}"
here=$(cd "$(dirname "$0")" && pwd)
store=${ONERULE_BIN:-$(dirname "$(dirname "$here")")/bin}/vm
bb=$store/busybox-static/bin/busybox
PATH=$PATH:/usr/sbin:/sbin

die() { echo "vm: $*" >&2; exit 125; }

# unpack PACKAGE prints the folder that a package of Debian is unpacked in.
unpack() {
	to=$store/$1
	if [ ! -d "$to" ]; then
		echo "vm: downloading $1" >&2
		rm -rf "$to.deb" && mkdir -p "$to.deb"
		(cd "$to.deb" && apt-get -q download -o APT::Sandbox::User=root "$1" >&2) || die "can't download $1"
		dpkg-deb -x "$to.deb"/*.deb "$to.new"
		rm -rf "$to.deb" && mv "$to.new" "$to"
	fi
	echo "$to"
}

# newest VERSION prints the package of its newest kernel.
newest() {
	v=$(echo "$1" | sed 's/\./\\./g')
	apt-cache pkgnames linux-image- | grep -E "^linux-image-$v[.-][^-]*(-[0-9]+)?-cloud-amd64\$" | sort -V | tail -n 1
}

# program NAME ROOT copies one, with its libraries.
program() {
	path=$(command -v "$1") || return 0
	cp -L "$path" "$2/bin/"
	ldd "$path" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
		mkdir -p "$2$(dirname "$lib")" && cp -L "$lib" "$2$lib"
	done
}

# modules KERNEL ROOT copies those of the network, and says in which order init loads them.
modules() {
	version=$(ls "$1/lib/modules")
	from=$1/lib/modules/$version to=$2/lib/modules/$version
	mkdir -p "$to"
	(cd "$from" && find kernel/net kernel/lib kernel/crypto kernel/arch kernel/drivers/net kernel/drivers/virtio kernel/drivers/char \
		\( -path '*/net/ethernet' -o -path '*/net/wireless' -o -path '*/net/usb' -o -path '*/arch/x86/kvm' \) -prune -o \
		-name '*.ko*' -print) | while read -r ko; do mkdir -p "$to/$(dirname "$ko")" && cp "$from/$ko" "$to/$ko"; done
	find "$to" -name '*.xz' -exec "$bb" unxz {} +
	cp "$from"/modules.builtin* "$from/modules.order" "$to/"
	depmod -b "$2" "$version"
	# modules.dep names what a module needs from the last one to the first.
	awk -v dir="/lib/modules/$version/" 'NR == FNR { want[$1] = 1; next }
		{ name = $1; sub(/.*\//, "", name); sub(/\.ko:$/, "", name); gsub(/-/, "_", name); sub(/:$/, "", $1)
		  if (name in want) for (n = NF; n > 0; n--) if (!seen[$n]++) print dir $n }' \
		"$here/modules.txt" "$to/modules.dep" >"$2/lib/modules/load"
}

# root KERNEL ROOT makes all that does not depend on what is tested.
root() {
	for dir in bin proc sys dev job tmp root run etc usr; do mkdir -p "$2/$dir"; done
	ln -s bin "$2/sbin" && ln -s ../bin "$2/usr/bin" && ln -s ../bin "$2/usr/sbin"
	cp "$here/init" "$2/init" && chmod 755 "$2/init"
	cp "$bb" "$2/bin/busybox"
	for name in dash nft ip sysctl conntrack bpftool setpriv unshare strace; do program "$name" "$2"; done
	mv "$2/bin/dash" "$2/bin/sh" # busybox's own shell runs busybox's own ip
	modules "$1" "$2"
}

archive() { (cd "$1" && find . | "$bb" cpio -o -H newc -R 0:0 2>/dev/null); }

[ $# -ge 2 ] || die "which kernel, which package? make vm KERNEL=6.1 PKG=./bpf"
[ "$(go list "$2" | wc -l)" = 1 ] || die "$2 is not one package: make vm KERNEL=$1 PKG=./bpf"
kernel=$(newest "$1")
[ -n "$kernel" ] || die "apt-get knows no kernel $1 (linux-image-$1*-cloud-amd64; are its lists there?)"
folder=$(go list -f '{{.Dir}}' "$2")
shift 2

unpack busybox-static >/dev/null
kernel=$(unpack "$kernel")
work=$(mktemp -d)
trap 'kill "$(cat "$work/pid" 2>/dev/null)" 2>/dev/null || :; rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
mkdir -p "$work/root" "$work/job/job/bin"
root "$kernel" "$work/root"
cp -r "$folder/." "$work/job/job/"
CGO_ENABLED=0 go test -c -o "$work/job/job/it.test" "$folder"
for name in onerule oneruled; do cp "$(dirname "$store")/$name" "$work/job/job/bin/" 2>/dev/null || :; done
{
	echo "export ONERULE_PRIVILEGED=1 ONERULE_BIN=/job/bin"
	printf 'exec ./it.test -test.timeout %ss' "$((VM_SECONDS - 30))"
	for flag; do
		case $flag in -test.* | [!-]*) ;; *) flag=-test.${flag#-} ;; esac
		printf " '%s'" "$flag"
	done
} >"$work/job/job/.cmd"
{ archive "$work/root" && archive "$work/job"; } >"$work/initrd"
rm -rf "$work/root"

: >"$work/status"
# qemu opens its standard output anew: that must be a pipe, or it begins at its start.
{
	timeout -k 5 "$VM_SECONDS" qemu-system-x86_64 -M pc -accel "$VM_ACCEL" -cpu max,la57=off -m "$VM_MEMORY" -smp 2 \
		-nodefaults -no-user-config -display none -no-reboot -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd" \
		-append "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable" \
		-chardev "file,id=console,path=$work/console" -serial chardev:console -device virtio-serial-pci \
		-chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,name=out \
		-chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,name=status </dev/null &
	echo $! >"$work/pid"
	ended=0
	wait $! || ended=$?
	echo "$ended" >"$work/ended"
} | cat &
wait $! || :
[ ! -s "$work/status" ] || exit "$(cat "$work/status")"
[ "$(cat "$work/ended")" != 124 ] || { echo "vm: out of time ($VM_SECONDS s)" >&2; exit 124; }
tail -n 30 "$work/console" >&2
die "no answer from the virtual machine"
