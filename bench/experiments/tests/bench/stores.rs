//! Packaged stores, brokers and Python programs, plain and under uncopy with everything elided, as briefly as
//! possible: every byte read back is the stored one, and nothing is left behind. Figures are not checked.

use crate::harness::expect_verified;

#[test]
#[ignore = "for make test-all: e2e/memcached.rs compares every byte of the same server"]
fn memcached_gives_what_was_stored() {
    expect_verified(&["memcached-tcp", "memcached-udp", "memcached"]);
}

#[test]
#[ignore = "for make test-all: e2e/redis.rs compares every byte of the same server"]
fn redis_keeps_what_was_set() {
    expect_verified(&["redis-set", "redis-get"]);
}

#[test]
#[ignore = "for make test-all: e2e/postgresql.rs compares every byte of the same server"]
fn postgresql_keeps_large_rows_and_objects() {
    expect_verified(&["postgresql-copy", "postgresql-object"]);
}

#[test]
#[ignore = "for make test-all: e2e/mariadb.rs compares every byte of the same server"]
fn mariadb_keeps_blobs() {
    expect_verified(&["mariadb-blob"]);
}

#[test]
#[ignore = "for make test-all: e2e/mosquitto.rs compares every byte of the same server"]
fn mosquitto_delivers_large_messages_to_every_subscriber() {
    expect_verified(&["mosquitto"]);
}

#[test]
fn python_programs_pass_bytes_on() {
    expect_verified(&["python-http", "python-proxy"]);
}
