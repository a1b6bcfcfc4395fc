# Tornado and ZeroMQ: large messages.
# shellcheck shell=bash
packages="python3-tornado python3-zmq"
drive() { client python3 "$kit/messages.py"; }
