# SQLite: blobs of megabytes, in a write-ahead log, mapped, backed up and dumped.
# shellcheck shell=bash
packages="sqlite3"
drive() {
    bytes 1 3000000 >blob
    client sqlite3 a.db "pragma journal_mode=wal; create table t (id integer primary key, b blob); with recursive c(i) as (select 1 union all select i + 1 from c where i < 30) insert into t select i, readfile('blob') || i from c; select count(*), sum(length(b)) from t;" || return
    client sqlite3 a.db "update t set b = b || b where id % 4 = 0; delete from t where id % 5 = 0; pragma wal_checkpoint(truncate); vacuum; pragma mmap_size=268435456; select count(*), sum(length(b)) from t; pragma integrity_check;" || return
    client sqlite3 a.db ".backup b.db" ".dump" | sha256sum
    client sqlite3 b.db "select writefile('out' || id, b) from t where id in (1, 4, 28)" && digest out*
}
after() { digest b.db; }
