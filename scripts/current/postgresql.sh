# PostgreSQL 17: pgbench, COPY of wide rows in and out, large values, kill -9 of the server under load and recovery.
# shellcheck shell=bash
packages="postgresql-17 postgresql-client-17"
source /opt/current/kit/postgres.sh 2>/dev/null || true
start() {
    make_database /room/data/db || return
    serve_as postgres postgres "$bin/postgres" -D /room/data/db -p 5432
    await "$bin/pg_isready" -h 127.0.0.1
}
drive() {
    client "$bin/pgbench" -h 127.0.0.1 -U postgres -i -s 2 postgres >/dev/null 2>&1 || return
    client "$bin/pgbench" -h 127.0.0.1 -U postgres -c 4 -j 2 -t 200 postgres >/dev/null 2>&1 || return
    ask -c "select count(*), sum(abalance) = (select sum(bbalance) from pgbench_branches) from pgbench_accounts" postgres || return
    python3 -c '
import random
source = random.Random(1)
for row in range(300):
    print(row, source.randbytes(source.choice([100, 20000, 150000])).hex(), "word " * source.choice([10, 50000]), sep="\t")' >rows
    ask -c "create table wide (id int, data text, words text)" postgres || return
    ask -c "alter table wide alter data set storage external" postgres || return
    ask -c "\\copy wide from 'rows'" postgres || return
    ask -c "\\copy (select * from wide order by id) to 'back'" postgres || return
    digest rows back
    ask -c "select sum(length(data)), md5(string_agg(md5(data || words), '' order by id)) from wide" postgres || return
    ask -c "update wide set data = data || data where id % 3 = 0; delete from wide where id % 7 = 0" postgres || return
    ask -c "select sum(length(data)), md5(string_agg(data, '' order by id)) from wide" postgres || return
    client "$bin/pg_dump" -h 127.0.0.1 -U postgres -t wide postgres | grep -v '^--\|^\\\|^SET' | sha256sum
    # Killed with all its children while it writes.
    ask -c "insert into wide select id + 1000, data, words from wide" postgres || return
    "$bin/pgbench" -h 127.0.0.1 -U postgres -c 2 -t 100000 postgres >/dev/null 2>&1 &
    sleep 1
    pkill -KILL -x postgres
    wait
    served=()
    rm -f /room/data/db/postmaster.pid
    serve_as postgres again "$bin/postgres" -D /room/data/db -p 5432
    await "$bin/pg_isready" -h 127.0.0.1
    ask -c "select sum(length(data)), md5(string_agg(data, '' order by id)) from wide" postgres || return
    ask -c "select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)" postgres
}
