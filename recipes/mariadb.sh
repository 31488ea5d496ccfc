#!/bin/bash
# Starts MariaDB, making its data directory first where there is none.
#
# A new one is described by MARIADB_ROOT_PASSWORD (or MARIADB_RANDOM_ROOT_PASSWORD, MARIADB_ALLOW_EMPTY_ROOT_PASSWORD,
# MARIADB_ROOT_PASSWORD_HASH), MARIADB_ROOT_HOST, MARIADB_DATABASE, MARIADB_USER, MARIADB_PASSWORD (or
# MARIADB_PASSWORD_HASH). MYSQL_ may stand for MARIADB_, and each may be given as a file by adding _FILE. Scripts and SQL
# in /docker-entrypoint-initdb.d run once, in a new one only.
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }

# from_environment NAME: MARIADB_NAME, MYSQL_NAME or what is in the file that one of them with _FILE names.
from_environment() {
  local name value='' prefix file
  for prefix in MARIADB MYSQL; do
    name="${prefix}_$1" file="${prefix}_$1_FILE"
    [ -z "${!name:-}" ] || [ -z "${!file:-}" ] || fail "$name and $file are both set"
    [ -n "$value" ] || value=${!name:-}
    [ -n "$value" ] || [ -z "${!file:-}" ] || value=$(< "${!file}")
    unset "$file"
  done
  export "MARIADB_$1=$value"
}

# setting NAME: what the server would take for NAME with these arguments.
setting() {
  local name=$1; shift
  "$@" --verbose --help 2> /dev/null \
    | awk -v name="$name " 'index($0, name) == 1 && !found { found = 1; sub(/^[^ ]+ +/, ""); print }'
}

quoted() { printf "'%s'" "$(sed "s/\\\\/\\\\\\\\/g; s/'/\\\\'/g" <<< "$1")"; }

sql() {
  mariadb --protocol=socket --socket="$socket" --user=root --password="${root_password:-}" --comments "$@"
}

accounts() {
  local host
  echo 'SET @@SESSION.SQL_LOG_BIN = 0;'
  echo "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host NOT IN ('localhost')); FLUSH PRIVILEGES;"
  if [ -n "$MARIADB_ROOT_PASSWORD_HASH" ]; then
    echo "SET PASSWORD FOR root@localhost = $(quoted "$MARIADB_ROOT_PASSWORD_HASH");"
  else
    echo "SET PASSWORD FOR root@localhost = PASSWORD($(quoted "$MARIADB_ROOT_PASSWORD"));"
  fi
  host=${MARIADB_ROOT_HOST:-%}
  if [ "$host" != localhost ]; then
    if [ -n "$MARIADB_ROOT_PASSWORD_HASH" ]; then
      echo "CREATE USER root@$(quoted "$host") IDENTIFIED BY PASSWORD $(quoted "$MARIADB_ROOT_PASSWORD_HASH");"
    else
      echo "CREATE USER root@$(quoted "$host") IDENTIFIED BY $(quoted "$MARIADB_ROOT_PASSWORD");"
    fi
    echo "GRANT ALL ON *.* TO root@$(quoted "$host") WITH GRANT OPTION;"
  fi
  echo 'DROP DATABASE IF EXISTS test;'
  [ -z "$MARIADB_DATABASE" ] || echo "CREATE DATABASE IF NOT EXISTS \`${MARIADB_DATABASE//\`/\`\`}\`;"
  if [ -n "$MARIADB_USER" ]; then
    if [ -n "$MARIADB_PASSWORD_HASH" ]; then
      echo "CREATE USER $(quoted "$MARIADB_USER")@'%' IDENTIFIED BY PASSWORD $(quoted "$MARIADB_PASSWORD_HASH");"
    else
      echo "CREATE USER $(quoted "$MARIADB_USER")@'%' IDENTIFIED BY $(quoted "$MARIADB_PASSWORD");"
    fi
    [ -z "$MARIADB_DATABASE" ] \
      || echo "GRANT ALL ON \`$(sed 's/`/``/g; s/_/\\_/g; s/%/\\%/g' <<< "$MARIADB_DATABASE")\`.* TO $(quoted "$MARIADB_USER")@'%';"
  fi
}

scripts() {
  local file
  local -a database=()
  [ -z "$MARIADB_DATABASE" ] || database=("--database=$MARIADB_DATABASE")
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in
      *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
      *.sql) sql "${database[@]}" < "$file" ;;
      *.sql.gz) gunzip -c "$file" | sql "${database[@]}" ;;
      *.sql.xz) xzcat "$file" | sql "${database[@]}" ;;
      *.sql.zst) zstd -dc "$file" | sql "${database[@]}" ;;
      *) [ ! -e "$file" ] || echo "ignoring $file" ;;
    esac
  done
}

new_data_directory() {
  if [ -n "$MARIADB_RANDOM_ROOT_PASSWORD" ]; then
    MARIADB_ROOT_PASSWORD=$(head -c 24 /dev/urandom | base64)
    echo "the root password is $MARIADB_ROOT_PASSWORD"
  fi
  if [ -z "$MARIADB_ROOT_PASSWORD$MARIADB_ROOT_PASSWORD_HASH$MARIADB_ALLOW_EMPTY_ROOT_PASSWORD" ]; then
    fail "a new database needs a root password: set MARIADB_ROOT_PASSWORD, MARIADB_RANDOM_ROOT_PASSWORD or" \
      "MARIADB_ALLOW_EMPTY_ROOT_PASSWORD"
  fi
  mariadb-install-db --datadir="$datadir" --rpm --auth-root-authentication-method=normal --skip-test-db \
    --old-mode= "${@:2}" > /dev/null

  # The scripts find a server that only they can reach.
  "$@" --skip-networking --socket="$socket" --wsrep-on=OFF --expire-logs-days=0 &
  local server=$!
  until sql -e 'SELECT 1' > /dev/null 2>&1; do
    kill -0 "$server" 2> /dev/null || fail "the server ended before it was ready"
    sleep 0.1
  done
  accounts | sql --database=mysql
  root_password=$MARIADB_ROOT_PASSWORD
  scripts
  kill "$server"
  wait "$server"
}

only_asks() {
  local word
  for word; do
    case $word in -\? | --help | --print-defaults | -V | --version) return 0 ;; esac
  done
  return 1
}

case ${1:-} in
  -*) set -- mariadbd "$@" ;;
  mysqld) set -- mariadbd "${@:2}" ;;
esac

if [ "${1:-}" = mariadbd ] && ! only_asks "$@"; then
  as_user=()
  [ "$(id -u)" != 0 ] || as_user=(setpriv --reuid=mysql --regid=mysql --init-groups --)
  datadir=$(setting datadir "$@") socket=$(setting socket "$@")
  [ -n "$datadir" ] || fail "the server does not accept its configuration: $("$@" --verbose --help 2>&1 > /dev/null | tail -n 3)"
  if [ "$(id -u)" = 0 ]; then
    mkdir -p "$datadir" "${socket%/*}"
    find "$datadir" "${socket%/*}" \! -user mysql -exec chown mysql:mysql '{}' +
    exec "${as_user[@]}" "$0" "$@"
  fi
  mkdir -p "$datadir"
  for name in ROOT_HOST DATABASE USER PASSWORD PASSWORD_HASH ROOT_PASSWORD ROOT_PASSWORD_HASH RANDOM_ROOT_PASSWORD \
    ALLOW_EMPTY_ROOT_PASSWORD; do
    from_environment "$name"
  done
  [ -n "$MARIADB_ALLOW_EMPTY_ROOT_PASSWORD" ] || MARIADB_ALLOW_EMPTY_ROOT_PASSWORD=${MYSQL_ALLOW_EMPTY_PASSWORD:-}
  [ -d "$datadir/mysql" ] || new_data_directory "$@"
fi

exec "$@"
