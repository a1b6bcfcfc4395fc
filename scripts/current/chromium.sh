# chromium without a window: a page with scripts, large answers and a canvas.
# shellcheck shell=bash
packages="chromium nginx"
known_always="its zygote ends unless it has one thread, and receives more than 4 KiB, for which uncopy starts one (docs/semantics.md)"
start() {
    mkdir -p www/up && chmod 777 www/up && bytes 1 4000000 >www/large && chmod -R a+rX .
    cat >www/index.html <<'HTML'
<link rel="icon" href="data:,"><script>
let said = "";
(async () => {
    for (let at = 0; at < 6; at++) {
        const data = new Uint8Array(await (await fetch("large?" + at)).arrayBuffer());
        let sum = 0;
        for (const byte of data) sum = (sum * 31 + byte) >>> 0;
        said += data.length + " " + sum + " ";
        const worker = new Worker(URL.createObjectURL(new Blob(["onmessage = (m) => postMessage(m.data.reverse())"])));
        const back = await new Promise((done) => { worker.onmessage = (m) => done(m.data); worker.postMessage(data); });
        sum = 0;
        for (const byte of back) sum = (sum * 31 + byte) >>> 0;
        said += "back " + sum + "\n";
    }
    await fetch("up/said", { method: "PUT", body: said });
})();
</script>
HTML
    echo 'pid /run/nginx.pid; error_log /room/logs/nginx-error; events {} http { access_log off; server { listen 8080; root /room/data/www; sendfile off; output_buffers 2 256k; client_body_temp_path /tmp/body; dav_methods PUT; types { text/html html; } } }' >nginx.conf
    serve nginx nginx -c /room/data/nginx.conf -g "daemon off;"
    await listens 8080
}
drive() {
    export HOME=/tmp DBUS_SESSION_BUS_ADDRESS=
    serve chromium chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/profile http://127.0.0.1:8080/index.html
    await test -e www/up/said
    cat www/up/said
}
