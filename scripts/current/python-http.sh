# aiohttp, uvicorn and gunicorn: large bodies both ways, streamed and whole, by workers that are replaced meanwhile.
# shellcheck shell=bash
packages="python3-aiohttp python3-uvicorn gunicorn"
start() {
    bytes 1 4000000 >large
    cp "$kit/servers.py" .
    serve aiohttp python3 servers.py 8001
    await listens 8001
    serve uvicorn python3 -m uvicorn --port 8002 --log-level warning servers:asgi
    await listens 8002
    serve gunicorn python3 -m gunicorn -b 127.0.0.1:8003 -w 2 --threads 2 --worker-tmp-dir /dev/shm servers:wsgi
    await listens 8003
}
drive() {
    local port
    for port in 8001 8002 8003; do
        client python3 "$kit/fetch.py" --lenient --rounds 8 "http://127.0.0.1:$port/"{3000000,200000,50} || return
        client python3 "$kit/fetch.py" --lenient --rounds 8 --post large "http://127.0.0.1:$port/echo" || return
    done
    client python3 "$kit/fetch.py" --lenient --rounds 30 http://127.0.0.1:8003/300000 &
    kill -HUP "$server"
    wait $! || return
    client python3 "$kit/clients.py" http://127.0.0.1:8001/echo large
}
