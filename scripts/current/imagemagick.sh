# ImageMagick: images of some MiB made, converted, scaled and compared, through files and pipes.
# shellcheck shell=bash
packages="imagemagick"
drive() {
    client convert -seed 1 -size 1600x1200 plasma:red-blue -depth 8 a.ppm || return
    client convert a.ppm -resize 800x600 -rotate 30 -depth 8 rgb:- | sha256sum
    client convert a.ppm png:- | client convert png:- -depth 8 rgb:- | sha256sum
    client convert a.ppm -quality 90 b.jpg && client convert b.jpg -depth 8 rgb:- | sha256sum
    client convert a.ppm -blur 0x3 -depth 8 rgb:- | sha256sum
}
