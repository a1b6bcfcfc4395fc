# Apache with its event processes: files, proxied and compressed answers, uploads by WebDAV, a CGI; reloaded under load.
# shellcheck shell=bash
packages="apache2"
start() {
    mkdir -p www/dav && bytes 1 4000000 >www/large && bytes 2 300000 >www/middle && chmod -R a+rX . && chmod 777 www/dav . && mkdir -p cgi
    printf '#!/bin/sh\necho "Content-Type: application/octet-stream"\necho\ncat /room/data/www/large\n' >cgi/large && chmod 755 cgi/large
    { for module in mpm_event authz_core alias env mime deflate filter proxy proxy_http dav dav_fs dav_lock cgid; do
        [[ ! -e /usr/lib/apache2/modules/mod_$module.so ]] || echo "LoadModule ${module}_module /usr/lib/apache2/modules/mod_$module.so"
    done
    cat <<'CONF'
ServerName localhost
TypesConfig /dev/null
Listen 8080
Listen 8081
PidFile /run/apache.pid
ErrorLog /room/logs/apache-error
DocumentRoot /room/data/www
User www-data
Group www-data
EnableSendfile Off
DavLockDB /tmp/davlock
ScriptAlias /cgi /room/data/cgi
ProxyPass /proxy http://127.0.0.1:8081
Alias /gzip /room/data/www
<IfModule mod_cgid.c>
ScriptSock /run/cgid.sock
</IfModule>
<Location /gzip>
SetOutputFilter DEFLATE
</Location>
<Location /dav>
Dav On
</Location>
CONF
    } >conf
    serve apache apache2 -f /room/data/conf -DFOREGROUND
    await listens 8080
}
drive() {
    client python3 "$kit/fetch.py" --lenient --rounds 8 http://127.0.0.1:8080/{,proxy/,gzip/}{large,middle} http://127.0.0.1:8080/cgi/large &
    sleep 0.5
    kill -USR1 "$server"
    wait $! || return
    client python3 "$kit/fetch.py" --lenient --threads 1 --rounds 1 --put www/large http://127.0.0.1:8080/dav/{1,2,3,4} || return
    digest www/dav/*
}
