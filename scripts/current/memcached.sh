# memcached with large items, in chunks and in slabs of their own, and by its proxy.
# shellcheck shell=bash
packages="memcached"
start() {
    serve memcached memcached -u nobody -p 11211 -m 512 -I 8m -t 3
    await listens 11211
    serve chunks memcached -u nobody -p 11212 -m 512 -I 8m -o slab_chunk_max=512 -t 2 -R 200
    await listens 11212
}
drive() {
    client python3 "$kit/cache.py" 11211 4 60 || return
    client python3 "$kit/cache.py" 11212 4 60
}
