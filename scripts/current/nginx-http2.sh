# nginx with TLS and HTTP/2: many streams in one connection, large bodies both ways, WebDAV's PUT.
# shellcheck shell=bash
packages="nginx curl openssl"
start() {
    mkdir -p www tmp
    bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && bytes 3 70000 >www/small
    chmod -R a+rX . && chmod 1777 tmp www
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost 2>/dev/null
    cat >nginx.conf <<'CONF'
worker_processes 2;
pid /run/nginx.pid;
error_log /room/logs/nginx-error;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path /room/data/tmp/body;
    client_max_body_size 64m;
    http2_max_concurrent_streams 64;
    server {
        listen 8443 ssl; http2 on;
        ssl_certificate /room/data/cert; ssl_certificate_key /room/data/key; ssl_buffer_size 64k;
        root /room/data/www;
        location / { sendfile off; output_buffers 2 256k; dav_methods PUT DELETE; create_full_put_path on; dav_access user:rw group:r all:r; }
    }
}
CONF
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8443
}
drive() {
    local words=() at
    for at in $(seq 1 24); do
        words+=(-o "out$at" "https://127.0.0.1:8443/$(((at % 2)) && echo large || echo middle)")
    done
    client curl -sk --http2 --parallel --parallel-max 12 "${words[@]}" || return
    cat out* | sha256sum
    for at in 1 2 3 4; do
        client curl -sk --http2 -T www/large "https://127.0.0.1:8443/put/$at" -w '%{http_version} %{http_code}\n' || return
    done
    client curl -sk --http1.1 "https://127.0.0.1:8443/put/[1-4]" | sha256sum
    digest www/put/*
}
