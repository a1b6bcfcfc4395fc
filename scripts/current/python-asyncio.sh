# Python 3.13's asyncio: streams, protocols with buffers of their own, sendfile, a pool of processes.
# shellcheck shell=bash
packages="python3"
drive() {
    client python3 "$kit/streams.py"
}
