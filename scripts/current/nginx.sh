# nginx: files by sendfile, by threads and copied, bodies that are proxied and buffered, compression; reloaded under load.
# shellcheck shell=bash
packages="nginx python3-aiohttp"
start() {
    mkdir -p www tmp
    bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && bytes 3 70000 >www/small.txt && bytes 4 9000 >www/tiny
    chmod -R a+rX . && chmod 1777 tmp
    cat >nginx.conf <<'CONF'
worker_processes 2;
pid /run/nginx.pid;
error_log /room/logs/nginx-error;
thread_pool default threads=4;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path /room/data/tmp/body; proxy_temp_path /room/data/tmp/proxy;
    client_max_body_size 64m;
    proxy_cache_path /room/data/tmp/cache keys_zone=c:1m;
    upstream back { server 127.0.0.1:8081; keepalive 8; }
    server {
        listen 8080;
        root /room/data/www;
        location / { sendfile on; }
        location /aio/ { alias /room/data/www/; sendfile off; aio threads; output_buffers 2 256k; }
        location /copied/ { alias /room/data/www/; sendfile off; output_buffers 2 512k; }
        location /direct/ { alias /room/data/www/; directio 64k; aio threads; output_buffers 1 256k; }
        location /gzip/ { alias /room/data/www/; gzip on; gzip_types *; gzip_min_length 1; sendfile off; }
        location /proxy/ { proxy_pass http://back/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffers 8 256k; proxy_buffer_size 256k; proxy_busy_buffers_size 512k; }
        location /cached/ { proxy_pass http://back/; proxy_cache c; proxy_cache_valid 1h; aio threads; aio_write on; }
        location /unbuffered/ { proxy_pass http://back/; proxy_http_version 1.1; proxy_buffering off; proxy_request_buffering off; }
        location /echo { client_body_buffer_size 1m; proxy_pass http://back/echo; proxy_http_version 1.1; proxy_set_header Connection ""; }
    }
}
CONF
    # Not the one that is reloaded: it would close connections that are being used again.
    cat >back.conf <<'CONF'
pid /run/back.pid;
error_log /room/logs/back-error;
events {}
http {
    access_log off;
    client_body_temp_path /room/data/tmp/back;
    client_max_body_size 64m;
    server { listen 8081; root /room/data/www; sendfile off; output_buffers 2 256k; location /echo { client_body_buffer_size 8m; client_body_in_single_buffer on; proxy_pass http://127.0.0.1:8082/whole; proxy_http_version 1.1; proxy_buffers 8 256k; proxy_buffer_size 256k; proxy_busy_buffers_size 512k; } }
}
CONF
    serve echo python3 "$kit/servers.py" 8082
    await listens 8082
    serve back nginx -c /room/data/back.conf -g "daemon off;"
    await listens 8081
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8080
}
drive() {
    local at urls=()
    for at in "" aio/ copied/ direct/ gzip/ proxy/ cached/ unbuffered/; do
        urls+=("http://127.0.0.1:8080/$at"{large,middle,small.txt,tiny})
    done
    client python3 "$kit/fetch.py" --lenient --threads 4 --rounds 6 "${urls[@]}" &
    local load=$!
    for at in 1 2 3; do
        sleep 0.5
        kill -HUP "$server"
    done
    wait "$load" || return
    client python3 "$kit/fetch.py" --lenient --threads 2 --rounds 8 --post www/large http://127.0.0.1:8080/{proxy/echo,unbuffered/echo,echo}
}
