# PgBouncer before PostgreSQL: wide rows through a pool.
# shellcheck shell=bash
packages="pgbouncer postgresql-17 postgresql-client-17"
source /opt/current/kit/postgres.sh 2>/dev/null || true
start() {
    make_database /room/data/db || return
    serve_as postgres postgres "$bin/postgres" -D /room/data/db -p 5432
    await "$bin/pg_isready" -h 127.0.0.1
    printf '[databases]\npostgres = host=127.0.0.1 port=5432\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=6432\nauth_type=any\npool_mode=transaction\npkt_buf=65536\nunix_socket_dir=\n' >ini && sed -i 's/^postgres = .*/& user=postgres/' ini
    serve_as postgres pgbouncer pgbouncer /room/data/ini
    await "$bin/pg_isready" -h 127.0.0.1 -p 6432
}
drive() {
    local at
    ask -p 6432 -c "create table wide as select i, repeat(md5(i::text), 20000) as data from generate_series(1, 60) i" postgres || return
    for at in 1 2 3; do ask -p 6432 -c "select * from wide order by i" postgres | sha256sum; done
    ask -p 6432 -c "\\copy wide to 'out'" postgres && digest out && ask -p 6432 -c "\\copy wide from 'out'" postgres && ask -p 6432 -c "select md5(string_agg(data, '' order by i)) from wide" postgres
}
