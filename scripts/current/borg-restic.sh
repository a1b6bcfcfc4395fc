# borg and restic: backups with chunks, checked and restored.
# shellcheck shell=bash
packages="borgbackup restic"
drive() {
    local at
    export BORG_BASE_DIR=/tmp/borg RESTIC_PASSWORD=x RESTIC_CACHE_DIR=/tmp/restic
    mkdir tree && for at in 1 2 3 4; do bytes $at 4000000 >tree/f$at; done
    client borg init -e none repo && client borg create repo::a tree && client borg check --verify-data repo && mkdir out && (cd out && client borg extract ../repo::a) || return
    tree out/tree
    client restic -q -r res init && client restic -q -r res backup tree && client restic -q -r res check --read-data && client restic -q -r res restore latest --target out2 || return
    tree out2
}
