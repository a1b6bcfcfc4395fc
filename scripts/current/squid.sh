# Squid 6 before nginx: large objects in memory, on disk, and passed by; posts.
# shellcheck shell=bash
packages="squid nginx"
start() {
    mkdir www cache && bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && bytes 3 70000 >www/small && chmod -R a+rX . && chown proxy cache
    echo 'pid /run/nginx.pid; error_log /room/logs/nginx-error; events {} http { access_log off; client_max_body_size 64m; client_body_temp_path /tmp/body; server { listen 8081; root /room/data/www; add_header Cache-Control max-age=3600; location /sink { client_body_buffer_size 8m; proxy_pass http://127.0.0.1:8082; } } server { listen 8082; location / { return 200 "$request_length\n"; } } }' >nginx.conf
    cat >squid.conf <<'CONF'
http_port 127.0.0.1:8080 accel defaultsite=localhost no-vhost
cache_peer 127.0.0.1 parent 8081 0 no-query originserver name=back
http_access allow all
cache_mem 64 MB
maximum_object_size 16 MB
maximum_object_size_in_memory 1 MB
cache_dir ufs /room/data/cache 200 4 16
pid_filename /run/squid.pid
access_log none
cache_log /room/logs/squid-cache
shutdown_lifetime 1 second
pinger_enable off
coredump_dir /tmp
CONF
    chmod 777 "$logs"
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8081
    squid -z -N -f /room/data/squid.conf >"$logs/squid-z" 2>&1
    serve squid squid -N -f /room/data/squid.conf
    await listens 8080
}
drive() {
    client python3 "$kit/fetch.py" --lenient --rounds 12 http://127.0.0.1:8080/{large,middle,small} || return
    client python3 "$kit/fetch.py" --lenient --rounds 4 --post www/large http://127.0.0.1:8080/sink
}
