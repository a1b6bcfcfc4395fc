# qemu-img, qemu-nbd and nbdkit: images converted between formats, compressed, by NBD, compared.
# shellcheck shell=bash
packages="qemu-utils nbdkit libnbd-bin"
start() {
    bytes 1 30000000 >raw && truncate -s 64M raw
    serve nbdkit nbdkit -f -i 127.0.0.1 -p 10809 file /room/data/raw
    await listens 10809
}
drive() {
    client qemu-img convert -f raw -O qcow2 raw a.qcow2 && client qemu-img convert -c -O qcow2 a.qcow2 b.qcow2 && client qemu-img convert -O vmdk b.qcow2 c.vmdk || return
    client qemu-img convert -O raw c.vmdk d && digest d && client qemu-img compare raw b.qcow2 && client qemu-img check a.qcow2 || return
    client qemu-img convert -O raw nbd://127.0.0.1:10809 e && digest e || return
    client nbdcopy nbd://127.0.0.1:10809 f && digest f || return
    serve qemu-nbd qemu-nbd -t -b 127.0.0.1 -p 10810 -f qcow2 a.qcow2
    await listens 10810
    client nbdcopy d nbd://127.0.0.1:10810 && client nbdcopy nbd://127.0.0.1:10810 g && digest g
}
