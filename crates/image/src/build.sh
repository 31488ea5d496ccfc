#!/bin/sh
# Runs in mount and process namespaces of its own, in a directory of its own:
#   lower    the base layer (a link), where there is one
#   before/  files to put in place before the packages, files/ after them
#   passwd group  lines to add; setup  a script to run inside; apt.conf sources dpkg.cfg  for apt and dpkg
#   tree     what comes out: the base, or what the packages changed
# SUITE, PACKAGES and VARIANT say what to install. The mount is gone when this ends, however it ends.
set -eu

root=tree
if [ -e lower ]; then
  mkdir tree work merged
  mount -t overlay overlay -o lowerdir=lower,upperdir=tree,workdir=work,redirect_dir=off,metacopy=off merged
  root=merged
  cat passwd >> merged/etc/passwd
  cat group >> merged/etc/group
  sed 's/^\([^:]*\):.*/\1:!:::::::/' passwd >> merged/etc/shadow
  cp -a --no-preserve=ownership before/. merged/
fi

mmdebstrap --mode=root --variant="$VARIANT" --format=directory --skip=check/empty ${PACKAGES:+"--include=$PACKAGES"} \
  --aptopt='APT::Sandbox::User "root"' --aptopt='Acquire::Languages "none"' --aptopt=apt.conf \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
  --dpkgopt=force-confold --dpkgopt=force-unsafe-io --dpkgopt=dpkg.cfg \
  "$SUITE" "$root" sources

# What packages put there for a running system; what the recipe puts there stays.
rm -rf "$root"/run/*
if [ -e lower ]; then
  cp -a --no-preserve=ownership files/. merged/
  [ ! -s setup ] || chroot merged /bin/sh -eu < setup
fi

# Devices, addresses and caches are the machine's; what apt was told here is nobody else's business.
rm -rf "$root"/dev/* "$root"/tmp/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
  "$root"/var/cache/debconf/*-old "$root"/var/cache/ldconfig "$root"/var/log/* "$root"/etc/machine-id \
  "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/sources.list \
  "$root"/var/lib/dpkg/*-old "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow-
: > "$root"/etc/hostname
: > "$root"/etc/resolv.conf
