# ffmpeg: raw frames through pipes, encoded, decoded, filtered.
# shellcheck shell=bash
packages="ffmpeg"
drive() {
    client ffmpeg -v error -f lavfi -i testsrc2=s=640x360:r=25:d=3 -f rawvideo -pix_fmt yuv420p - | client ffmpeg -v error -f rawvideo -s 640x360 -pix_fmt yuv420p -i - -c:v ffv1 -threads 2 -f nut - >a.nut || return
    client ffmpeg -v error -i a.nut -f rawvideo - | sha256sum
    client ffmpeg -v error -i a.nut -vf scale=320:180,hflip -c:v mpeg4 -bitexact -threads 1 -f avi b.avi && client ffmpeg -v error -i b.avi -f framemd5 - || return
    client ffmpeg -v error -f lavfi -i sine=d=20 -c:a flac -bitexact -f flac c.flac && client ffmpeg -v error -i c.flac -f wav -bitexact - | sha256sum
}
