# Erlang: binaries of megabytes over TCP, between nodes, and through files.
# shellcheck shell=bash
packages="erlang-base"
drive() {
    cp "$kit/tool.erl" . && client erlc tool.erl && client erl -noshell -s tool main -s init stop
}
