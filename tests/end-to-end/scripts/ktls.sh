#!/bin/bash
# nginx whose TLS records the kernel encrypts (kTLS), under uncopy, in a virtual machine whose kernel can: ktls.sh UNCOPY. Every file comes
# as it is. Lines that begin with RESULT are looked at outside.
set -eu
uncopy=$1
scratch_dir=/run/room
mkdir -p "$scratch_dir/files" && cd "$scratch_dir"
# The kernel does not find its modules by itself here.
modprobe -a tls gcm ctr ghash_generic aes_generic
"$uncopy" doctor -- nginx | grep '^TLS' | sed 's/^/RESULT doctor says: /'
for size in 1000 70000 1500000 9000000; do head -c "$size" /dev/urandom >"files/$size"; done
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out certificate.pem 2>/dev/null
# Sent by SSL_sendfile on one port, read and sent by SSL_write on the other.
cat >nginx.conf <<CONF
daemon off; master_process off; user root; pid $scratch_dir/pid; error_log stderr;
events { }
http {
    access_log off;
    ssl_certificate certificate.pem; ssl_certificate_key key.pem; ssl_conf_command Options KTLS;
    ssl_protocols TLSv1.2; output_buffers 2 512k; ssl_buffer_size 16k;
    server { listen 127.0.0.1:7443 ssl; root files; sendfile on; }
    server { listen 127.0.0.1:7444 ssl; root files; sendfile off; }
}
CONF
encrypted_connections() { awk '$1 == "TlsTxSw" { print $2 }' /proc/net/tls_stat; }
before=$(encrypted_connections)
"$uncopy" run --policy always --min-size 4K --stats "$scratch_dir/stats" -- nginx -p "$scratch_dir" -c "$scratch_dir/nginx.conf" 2>nginx.log &
server=$!
for attempt in $(seq 300); do
    curl -sk --max-time 5 -o /dev/null https://127.0.0.1:7443/1000 && break
    sleep 0.2
done
for port in 7443 7444; do
    for size in 1000 70000 1500000 9000000; do
        curl -sk --max-time 120 "https://127.0.0.1:$port/$size" | cmp - "files/$size" || { cat nginx.log && echo "RESULT ktls failed" && exit 1; }
    done
done
kill -QUIT "$server"
wait "$server" || true
(($(encrypted_connections) > before)) || { cat /proc/net/tls_stat nginx.log && echo "RESULT ktls: no connection was encrypted by the kernel" && exit 1; }
echo "RESULT ktls: $(($(encrypted_connections) - before)) connections encrypted by the kernel, all files as they are; $(grep -o '"copied_bytes": *[0-9]*\|"elided_bytes": *[0-9]*' "$scratch_dir/stats" | tr '\n' ' ')"
