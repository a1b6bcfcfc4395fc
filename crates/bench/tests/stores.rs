//! Packaged stores, brokers and Python programs, plain and under uncopy with everything elided, as short as can be: every
//! byte that comes back is the one that was stored, and nothing is left behind. Figures are not looked at.

mod command;
mod harness;

use harness::verified;

#[test]
fn memcached_gives_what_was_stored() {
    verified(&["memcached-tcp", "memcached-udp", "memcached"]);
}

#[test]
fn redis_keeps_what_was_set() {
    verified(&["redis-set", "redis-get"]);
}

#[test]
fn postgresql_keeps_large_rows_and_objects() {
    verified(&["postgresql-copy", "postgresql-object"]);
}

#[test]
fn mariadb_keeps_blobs() {
    verified(&["mariadb-blob"]);
}

#[test]
fn mosquitto_delivers_large_messages_to_every_subscriber() {
    verified(&["mosquitto"]);
}

#[test]
fn python_programs_pass_bytes_on() {
    verified(&["python-http", "python-proxy"]);
}
