# MariaDB 11.8: large blobs in and out, binary logging, a dump that is loaded again, kill -9 and recovery.
# shellcheck shell=bash
packages="mariadb-server mariadb-client"
options=(--no-defaults --datadir=/room/data/db --socket=/run/m.sock --port=3306 --user=mysql --max-allowed-packet=64M --log-bin=/room/data/db/log
    --innodb-buffer-pool-size=64M --tmpdir=/tmp)
ask() { client mariadb --no-defaults -S /run/m.sock -N --max-allowed-packet=64M "$@"; }
start() {
    chmod 777 /run
    mariadb-install-db --no-defaults --user=mysql --datadir=/room/data/db --auth-root-authentication-method=normal >"$logs/install" 2>&1 || return
    serve_as mysql mariadb mariadbd "${options[@]}"
    await mariadb-admin --no-defaults -S /run/m.sock ping
}
sum="select count(*), sum(length(d)), md5(group_concat(md5(d) order by id)) from t.wide"
drive() {
    python3 -c '
import random
source = random.Random(1)
print("create database t; create table t.wide (id int primary key, d longblob) engine=innodb;")
for row in range(40):
    print(f"insert into t.wide values ({row}, 0x{source.randbytes(source.choice([100, 70000, 1000000])).hex()});")' >rows
    ask <rows || return
    ask -e "set group_concat_max_len=1000000; $sum; update t.wide set d = concat(d, d) where id % 3 = 0; delete from t.wide where id % 7 = 0; $sum" || return
    client mariadb-dump --no-defaults -S /run/m.sock --max-allowed-packet=64M --hex-blob --skip-dump-date --databases t >dump || return
    sed '1,/^--$/d' dump | sha256sum
    ask -e "drop database t" && ask <dump && ask -e "$sum" || return
    ask -e "insert into t.wide select id + 1000, d from t.wide" || return
    finish KILL
    serve_as mysql again mariadbd "${options[@]}"
    await mariadb-admin --no-defaults -S /run/m.sock ping
    ask -e "$sum"
}
