#!/bin/sh
# Starts Valkey as the user valkey, with what the arguments and VALKEY_EXTRA_FLAGS say.
set -eu

case ${1:-} in
  -* | *.conf) set -- valkey-server "$@" ;;
esac

if [ "${1:-}" = valkey-server ] && [ "$(id -u)" = 0 ]; then
  [ "$PWD" = / ] || find . -xdev \! -user valkey -exec chown valkey '{}' +
  exec setpriv --reuid=valkey --regid=valkey --init-groups -- "$0" "$@"
fi

# What a new file may be read by others is decided here, unless it was before.
[ "$(umask)" != 0022 ] || umask 0077

if [ "${1:-}" = valkey-server ]; then
  # shellcheck disable=SC2086 # several flags in one variable
  set -- "$@" ${VALKEY_EXTRA_FLAGS:-}
  # A container's network is its own, so the server answers more than loopback, unless somebody chose.
  chosen=
  for word; do
    case $word in
      --protected-mode | -v | --version | -h | --help | --test-memory | --check-system) chosen=yes ;;
      *.conf) ! grep -qsE '^[[:space:]]*protected-mode' "$word" || chosen=yes ;;
    esac
  done
  [ -n "$chosen" ] || set -- "$@" --protected-mode no
fi

exec "$@"
