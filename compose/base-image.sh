#!/usr/bin/env bash
# Make a base image of Debian with debootstrap, for machines that reach a Debian mirror but no registry.
# Usage, as root: compose/base-image.sh [NAME]      (default: kbroker-base; needs docker and debootstrap)
set -euo pipefail
name=${1:-kbroker-base}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

tree=$(mktemp -d)
cleanup() {  # an interrupted debootstrap leaves its mounts
    umount -lq "$tree/proc" "$tree/sys" 2>/dev/null || true
    rm -rf --one-file-system "$tree"
}
trap cleanup EXIT

debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$tree" "$mirror" >&2
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*

# pip trusts what this host trusts: between it and PyPI there may be a proxy with a certificate of its own.
certificates=/etc/ssl/certs/ca-certificates.crt
[ ! -r "$certificates" ] || cp "$certificates" "$tree/etc/ssl/host-certificates.crt"
[ -e "$tree/etc/ssl/host-certificates.crt" ] || ln -s certs/ca-certificates.crt "$tree/etc/ssl/host-certificates.crt"

tar -C "$tree" -c . | docker import \
    --change 'ENV LANG=C.UTF-8' --change 'ENV PIP_CERT=/etc/ssl/host-certificates.crt' --change 'CMD ["bash"]' - "$name"
