# Vocabulary for PostgreSQL.
# shellcheck shell=bash disable=SC2154
bin=/usr/lib/postgresql/17/bin
# make_database DIRECTORY
make_database() {
    install -d -m 700 -o postgres "$1"
    setpriv --reuid=postgres --regid="$(id -g postgres)" --clear-groups -- "$bin/initdb" -D "$1" -A trust -E UTF8 --no-sync >"$logs/initdb" 2>&1 || return
    printf "listen_addresses = '127.0.0.1'\nunix_socket_directories = '/tmp'\nshared_buffers = 64MB\nmax_wal_size = 256MB\n" >>"$1/postgresql.conf"
}
ask() { client "$bin/psql" -h 127.0.0.1 -U postgres -qtAX -v ON_ERROR_STOP=1 "$@"; }
