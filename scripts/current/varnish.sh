# Varnish 7.7 before nginx: hits and misses of large objects, passed and piped, in memory and in a file.
# shellcheck shell=bash
packages="varnish nginx gcc libc6-dev"
start() {
    mkdir www
    bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && bytes 3 70000 >www/small && chmod -R a+rX .
    echo 'pid /run/nginx.pid; error_log /room/logs/nginx-error; events {} http { access_log off; server { listen 8081; root /room/data/www; sendfile off; output_buffers 2 256k; } }' >nginx.conf
    cat >vcl <<'VCL'
vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "8081"; }
sub vcl_recv {
    if (req.url ~ "^/pass/") { set req.url = regsub(req.url, "^/pass", ""); return (pass); }
    if (req.url ~ "^/pipe/") { set req.url = regsub(req.url, "^/pipe", ""); return (pipe); }
}
sub vcl_backend_response { set beresp.ttl = 1h; if (bereq.url ~ "small") { set beresp.do_gzip = true; } if (bereq.url ~ "middle") { set beresp.storage = storage.disk; } }
VCL
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8081
    mkdir -p /tmp/v && chmod 777 /tmp/v
    serve varnish varnishd -F -a 127.0.0.1:8080 -f /room/data/vcl -n /tmp/v -s default,128m -s disk=file,/room/data/store,64m -j none
    await listens 8080
}
drive() {
    client python3 "$kit/fetch.py" --lenient --rounds 12 http://127.0.0.1:8080/{large,middle,small} http://127.0.0.1:8080/pass/{large,middle} || return
    client python3 "$kit/fetch.py" --lenient --rounds 4 http://127.0.0.1:8080/pipe/{large,middle}
}
