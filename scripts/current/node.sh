# Node 20: an HTTP server with streams, files, compression, worker threads and child processes.
# shellcheck shell=bash
packages="nodejs"
start() {
    bytes 1 4000000 >large && bytes 2 300000 >middle
    serve node node "$kit/server.js" 8080
    await listens 8080
}
drive() {
    client python3 "$kit/fetch.py" --rounds 8 http://127.0.0.1:8080/{stream,whole,gzip}/{large,middle} || return
    client python3 "$kit/fetch.py" --rounds 8 --post large http://127.0.0.1:8080/echo || return
    client node "$kit/tool.js" http://127.0.0.1:8080/stream/large
}
