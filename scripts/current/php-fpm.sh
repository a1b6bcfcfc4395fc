# PHP 8.4 by FPM behind nginx: large answers, uploads and session files; reloaded under load.
# shellcheck shell=bash
packages="php8.4-fpm php8.4-cli nginx"
start() {
    mkdir www && bytes 1 4000000 >www/large && chmod -R a+rX .
    cat >www/a.php <<'PHP'
<?php
if ($_SERVER["REQUEST_METHOD"] == "POST") { echo file_get_contents("php://input"); exit; }
switch ($_GET["way"]) {
case "read": readfile("large"); break;
case "whole": echo file_get_contents("large"); break;
case "made": $text = ""; for ($i = 0; $i < 40000; $i++) $text .= md5("$i"); echo $text, strrev($text); break;
case "sort": $a = range(1, 50000); mt_srand(3); shuffle($a); sort($a); echo serialize($a); break;
}
PHP
    printf '[global]\nerror_log=/room/logs/fpm-error\ndaemonize=no\nprocess_control_timeout=60s\n[www]\nuser=www-data\ngroup=www-data\nlisten=127.0.0.1:9000\npm=static\npm.max_children=3\npm.max_requests=50\nphp_admin_value[post_max_size]=64M\nphp_admin_value[memory_limit]=256M\n' >fpm.conf
    echo 'pid /run/nginx.pid; error_log /room/logs/nginx-error; events {} http { access_log off; client_max_body_size 64m; client_body_temp_path /tmp/body; fastcgi_temp_path /tmp/fcgi; server { listen 8080; root /room/data/www; location ~ php { fastcgi_pass 127.0.0.1:9000; include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME /room/data/www/a.php; fastcgi_buffers 8 256k; fastcgi_buffer_size 256k; fastcgi_busy_buffers_size 512k; } } }' >nginx.conf
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8080
    serve fpm php-fpm8.4 -F -R -y /room/data/fpm.conf
    await listens 9000
}
drive() {
    client python3 "$kit/fetch.py" --lenient --rounds 10 "http://127.0.0.1:8080/a.php?way="{read,whole,made,sort} || return
    client python3 "$kit/fetch.py" --lenient --rounds 6 --post www/large http://127.0.0.1:8080/a.php || return
    cd www && client php -r '$d = str_repeat(file_get_contents("large"), 3); file_put_contents("copy", $d); echo md5_file("copy"), " ", strlen(gzuncompress(gzcompress($d))), "\n"; $p = proc_open(["cat"], [["file", "copy", "r"], ["pipe", "w"]], $q); echo hash("sha256", stream_get_contents($q[1])), "\n";'
}
