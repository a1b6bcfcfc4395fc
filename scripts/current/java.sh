# OpenJDK 21: an HTTP server, channels with direct and heap buffers, mapped files, a compiler, four collectors.
# shellcheck shell=bash
packages="openjdk-21-jdk-headless"
start() {
    bytes 1 4000000 >large
    cp "$kit/Server.java" .
    client javac Server.java || return
    serve java java -Xmx256m -cp . Server 8080
    await listens 8080
}
drive() {
    local way
    client python3 "$kit/fetch.py" --rounds 8 http://127.0.0.1:8080/{heap,direct,mapped} || return
    client python3 "$kit/fetch.py" --rounds 8 --post large http://127.0.0.1:8080/echo || return
    for way in Serial Parallel G1 Z; do
        client java -Xmx256m "-XX:+Use${way}GC" -cp . Server || return
    done
}
