# curl, wget and aria2 against nginx: downloads in parts and in parallel, uploads.
# shellcheck shell=bash
packages="curl wget aria2 nginx"
start() {
    mkdir www && bytes 1 20000000 >www/large && bytes 2 300000 >www/middle && chmod -R a+rX . && chmod 777 www
    echo 'pid /run/nginx.pid; error_log /room/logs/nginx-error; events {} http { access_log off; client_max_body_size 64m; client_body_temp_path /tmp/body; server { listen 8080; root /room/data/www; sendfile off; dav_methods PUT; output_buffers 2 256k; } }' >nginx.conf
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8080
}
drive() {
    client curl -s --parallel -o a1 http://127.0.0.1:8080/large -o a2 http://127.0.0.1:8080/middle -o a3 http://127.0.0.1:8080/large || return
    client curl -s --buffer-size 524288 http://127.0.0.1:8080/large | sha256sum
    client curl -s -r 1000000-9000000 http://127.0.0.1:8080/large -o a4 && client curl -s -T a4 http://127.0.0.1:8080/up || return
    client wget -q -O a5 http://127.0.0.1:8080/large && client aria2c -q -x 4 -s 4 -k 1M -o a6 http://127.0.0.1:8080/large || return
    digest a? www/up
}
