#!/bin/bash
# Starts PostgreSQL, making its data directory first where there is none.
#
# POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB, POSTGRES_INITDB_ARGS, POSTGRES_INITDB_WALDIR and
# POSTGRES_HOST_AUTH_METHOD describe a new data directory; the first four may be given as files by adding _FILE. Scripts
# and SQL in /docker-entrypoint-initdb.d run once, in a new one only.
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }

# from_file NAME [DEFAULT]: NAME, or what is in the file that NAME_FILE names, but not both.
from_file() {
  local file="$1_FILE"
  [ -z "${!1:-}" ] || [ -z "${!file:-}" ] || fail "$1 and $file are both set"
  if [ -n "${!file:-}" ]; then
    export "$1=$(< "${!file}")"
  elif [ -z "${!1+set}" ]; then
    export "$1=${2:-}"
  fi
  unset "$file"
}

# PostgreSQL looks its user up by number, and a pod may run as one that nobody has heard of.
name_this_user() {
  getent passwd "$(id -u)" > /dev/null && return
  local library
  library=$(ls /usr/lib/*/libnss_wrapper.so 2> /dev/null | head -n 1) || true
  [ -n "$library" ] || return 0
  export LD_PRELOAD=$library NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
  NSS_WRAPPER_PASSWD=$(mktemp) NSS_WRAPPER_GROUP=$(mktemp)
  echo "postgres:x:$(id -u):$(id -g):PostgreSQL:$PGDATA:/bin/false" > "$NSS_WRAPPER_PASSWD"
  echo "postgres:x:$(id -g):" > "$NSS_WRAPPER_GROUP"
}

forget_this_user() {
  [ -z "${NSS_WRAPPER_PASSWD:-}" ] || rm -f "$NSS_WRAPPER_PASSWD" "$NSS_WRAPPER_GROUP"
  unset LD_PRELOAD NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
}

sql() { psql -v ON_ERROR_STOP=1 --no-psqlrc --no-password --username "$POSTGRES_USER" "$@"; }

new_data_directory() {
  if [ -z "$POSTGRES_PASSWORD" ] && [ "${POSTGRES_HOST_AUTH_METHOD:-}" != trust ]; then
    fail "a new database needs a superuser password: set POSTGRES_PASSWORD to a value that is not empty, or" \
      "POSTGRES_HOST_AUTH_METHOD=trust to let everybody in without one"
  fi
  local -a extra=()
  [ -z "$POSTGRES_INITDB_ARGS" ] || eval "extra=($POSTGRES_INITDB_ARGS)"
  [ -z "${POSTGRES_INITDB_WALDIR:-}" ] || extra=(--waldir "$POSTGRES_INITDB_WALDIR" "${extra[@]}")
  name_this_user
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") "${extra[@]}"
  forget_this_user

  local method=${POSTGRES_HOST_AUTH_METHOD:-}
  [ -n "$method" ] || method=$(postgres -C password_encryption "$@" 2> /dev/null) || method=scram-sha-256
  printf '\nhost all all all %s\n' "$method" >> "$PGDATA/pg_hba.conf"
}

# The scripts find a server that only they can reach.
first_steps() {
  local file
  PGPASSWORD=${PGPASSWORD:-$POSTGRES_PASSWORD} && export PGPASSWORD
  pg_ctl -D "$PGDATA" -w -o "$(printf '%q ' "${@:2}" -c listen_addresses= -p "${PGPORT:-5432}")" start
  if [ -z "$(sql --dbname postgres --set db="$POSTGRES_DB" -tA <<< "SELECT 1 FROM pg_database WHERE datname = :'db'")" ]; then
    sql --dbname postgres --set db="$POSTGRES_DB" <<< 'CREATE DATABASE :"db"'
  fi
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in
      *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
      *.sql) sql --dbname "$POSTGRES_DB" -f "$file" ;;
      *.sql.gz) gunzip -c "$file" | sql --dbname "$POSTGRES_DB" ;;
      *.sql.xz) xzcat "$file" | sql --dbname "$POSTGRES_DB" ;;
      *.sql.zst) zstd -dc "$file" | sql --dbname "$POSTGRES_DB" ;;
      *) [ ! -e "$file" ] || echo "ignoring $file" ;;
    esac
  done
  pg_ctl -D "$PGDATA" -m fast -w stop
  unset PGPASSWORD
}

only_asks() {
  local word
  for word; do
    case $word in -\? | --help | --describe-config | -V | --version | -C) return 0 ;; esac
  done
  return 1
}

case ${1:-} in -*) set -- postgres "$@" ;; esac

if [ "${1:-}" = postgres ] && ! only_asks "$@"; then
  from_file POSTGRES_PASSWORD
  from_file POSTGRES_USER postgres
  from_file POSTGRES_DB "$POSTGRES_USER"
  from_file POSTGRES_INITDB_ARGS
  mkdir -p "$PGDATA"
  mkdir -p /var/run/postgresql 2> /dev/null || true
  [ -z "${POSTGRES_INITDB_WALDIR:-}" ] || mkdir -p "$POSTGRES_INITDB_WALDIR"
  chmod 0700 "$PGDATA" 2> /dev/null || true
  if [ "$(id -u)" = 0 ]; then
    find "$PGDATA" \! -user postgres -exec chown postgres '{}' +
    chown postgres:postgres /var/run/postgresql && chmod 3777 /var/run/postgresql
    [ -z "${POSTGRES_INITDB_WALDIR:-}" ] || chown -R postgres "$POSTGRES_INITDB_WALDIR"
    exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$0" "$@"
  fi
  if [ ! -s "$PGDATA/PG_VERSION" ]; then
    new_data_directory "${@:2}"
    first_steps "$@"
  fi
  name_this_user
fi

exec "$@"
