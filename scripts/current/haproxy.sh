# HAProxy in front of nginx, by HTTP and TCP, with compression and a cache; reloaded under load, the sockets passed on.
# shellcheck shell=bash
packages="haproxy nginx curl"
start() {
    mkdir www
    bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && bytes 3 70000 >www/small
    chmod -R a+rX .
    cat >nginx.conf <<'CONF'
pid /run/nginx.pid; error_log /room/logs/nginx-error;
events {}
http { access_log off; client_max_body_size 64m; client_body_temp_path /tmp/body; server { listen 8081; root /room/data/www; sendfile off; output_buffers 2 256k; location /sink/ { client_body_buffer_size 8m; proxy_pass http://127.0.0.1:8082/; } } server { listen 8082; location / { return 200 "$request_length\n"; } } }
CONF
    cat >haproxy.cfg <<'CONF'
global
    stats socket /run/haproxy.sock expose-fd listeners level admin
    nbthread 2
    tune.bufsize 262144
    tune.maxrewrite 1024
defaults
    mode http
    timeout connect 60s
    timeout client 120s
    timeout server 120s
frontend web
    bind :8080
    use_backend big if { path_beg /buffered/ }
    default_backend files
backend files
    http-reuse always
    server one 127.0.0.1:8081
backend big
    option http-buffer-request
    http-request set-path %[path,regsub(^/buffered,)]
    server one 127.0.0.1:8081
frontend zip
    bind :8084
    filter compression
    compression algo gzip
    compression type application/octet-stream text/plain
    default_backend files
listen raw
    bind :8083
    mode tcp
    option splice-auto
    server one 127.0.0.1:8081
CONF
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8081
    serve haproxy haproxy -W -S /run/master.sock -f /room/data/haproxy.cfg
    await listens 8083
}
drive() {
    local load at
    client python3 "$kit/fetch.py" --lenient --threads 4 --rounds 12 http://127.0.0.1:{8080,8083}/{large,middle,small} http://127.0.0.1:8080/buffered/large &
    load=$!
    for at in 1 2 3; do
        sleep 0.7
        kill -USR2 "$server"
    done
    wait "$load" || return
    client python3 "$kit/fetch.py" --threads 2 --rounds 6 --post www/large http://127.0.0.1:{8080,8083}/sink/ || return
    client curl -s --compressed http://127.0.0.1:8084/{large,middle,small} | sha256sum
}
