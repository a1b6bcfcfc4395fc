# PostgreSQL 17: a base backup and streaming replication, physical and logical.
# shellcheck shell=bash
packages="postgresql-17 postgresql-client-17"
source /opt/current/kit/postgres.sh 2>/dev/null || true
start() {
    make_database /room/data/db || return
    echo "wal_level = logical" >>db/postgresql.conf
    serve_as postgres postgres "$bin/postgres" -D /room/data/db -p 5432
    await "$bin/pg_isready" -h 127.0.0.1
}
sum="select count(*), sum(length(data)), md5(string_agg(md5(data), '' order by id)) from wide"
drive() {
    ask -c "create table wide (id int primary key, data text); alter table wide alter data set storage external" postgres || return
    ask -c "insert into wide select i, repeat(md5(i::text), 5000) from generate_series(1, 200) i" postgres || return
    install -d -m 700 -o postgres copy
    client_as postgres "$bin/pg_basebackup" -h 127.0.0.1 -U postgres -D /room/data/copy -R -X stream -c fast || return
    serve_as postgres replica "$bin/postgres" -D /room/data/copy -p 5433
    await "$bin/pg_isready" -h 127.0.0.1 -p 5433
    make_database /room/data/other || return
    serve_as postgres logical "$bin/postgres" -D /room/data/other -p 5434
    await "$bin/pg_isready" -h 127.0.0.1 -p 5434
    ask -p 5434 -c "create table wide (id int primary key, data text)" postgres || return
    ask -c "create publication p for table wide" postgres || return
    ask -p 5434 -c "create subscription s connection 'host=127.0.0.1 user=postgres dbname=postgres' publication p" postgres 2>/dev/null || return
    ask -c "insert into wide select i, repeat(md5(i::text), 8000) from generate_series(1001, 1200) i; update wide set data = data || data where id % 5 = 0" postgres || return
    local wanted at
    wanted=$(ask -c "$sum" postgres)
    echo "$wanted"
    for at in 5433 5434; do
        await eval "[[ \$(ask -p $at -c \"\$sum\" postgres) == '$wanted' ]]"
        ask -p $at -c "$sum" postgres
    done
}
