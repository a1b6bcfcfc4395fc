# lighttpd: files written by each of its ways, a proxy, uploads, compression.
# shellcheck shell=bash
packages="lighttpd lighttpd-mod-webdav"
start() {
    local way port=8080
    mkdir -p www/dav && bytes 1 4000000 >www/large && bytes 2 300000 >www/middle
    for way in writev sendfile; do
        cat >$way.conf <<CONF
server.document-root = "/room/data/www"
server.port = $port
server.bind = "127.0.0.1"
server.network-backend = "$way"
server.modules = ("mod_proxy", "mod_webdav", "mod_deflate")
server.errorlog = "/room/logs/lighttpd-$way"
server.upload-dirs = ("/tmp")
deflate.mimetypes = ("")
\$HTTP["url"] =^ "/proxy/" { proxy.server = ("" => (("host" => "127.0.0.1", "port" => 8080))), proxy.header = ("map-urlpath" => ("/proxy/" => "/")) }
\$HTTP["url"] =^ "/dav/" { webdav.activate = "enable" }
CONF
        sed -i 's/(("host" => "127.0.0.1", "port" => 8080))), proxy.header/(("host" => "127.0.0.1", "port" => 8080)))\nproxy.header/' $way.conf
        serve lighttpd-$way lighttpd -D -f /room/data/$way.conf
        await listens $port
        port=$((port + 1))
    done
}
drive() {
    client python3 "$kit/fetch.py" --lenient --rounds 8 http://127.0.0.1:8080/{large,middle} http://127.0.0.1:8081/{large,middle,proxy/large,proxy/middle} || return
    client python3 "$kit/fetch.py" --lenient --threads 1 --rounds 1 --put www/large http://127.0.0.1:8080/dav/{1,2,3} || return
    digest www/dav/*
}
