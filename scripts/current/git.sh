# git: large objects, packs, clones by its daemon, gc and fsck.
# shellcheck shell=bash
packages="git"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a GIT_AUTHOR_DATE=@1000000000+0000 GIT_COMMITTER_DATE=@1000000000+0000
drive() {
    local at
    client git init -q -b main one && cd one || return
    for at in $(seq 1 12); do
        bytes "$at" 1500000 >"f$at" && bytes same 400000 >>"f$at" && bytes x $((at * 10000)) >g
        client git add . && client git commit -qm "$at" || return
    done
    client git gc -q && client git fsck --full && cd .. || return
    touch one/.git/git-daemon-export-ok
    serve daemon git daemon --base-path=/room/data --listen=127.0.0.1 --port=9418 --enable=receive-pack --reuseaddr
    await listens 9418
    client git clone -q git://127.0.0.1/one two && cd two || return
    bytes new 3000000 >new && client git add new && client git commit -qm new && client git push -q origin main:other || return
    client git archive HEAD | sha256sum
    client git log --format=%H -1
    client git -C ../one fsck --full && client git -C ../one show other:new | sha256sum
}
