# The frames stage and `caravan frames`: groups with bad media are quarantined with a reason, the order is kept, nothing is
# decoded twice, a changed file is decoded again, and the store of a killed stage stays usable.
. tests/e2e/common.sh
media=$PWD/tests/data/media

# group ID [KIND PATH]...: prints a group as one line.
group() {
    id=$1 parts=
    shift
    while [ $# -gt 0 ]; do
        parts="$parts{\"type\":\"$1\",\"$1\":\"$2\"},"
        shift 2
    done
    echo "{\"id\":\"$id\",\"sample_id\":\"$id\",\"mine\":[1,{}],\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[$parts{\"type\":\"text\",\"text\":\"?\"}]}],\"problem_type\":\"free-form\",\"solution\":\"<answer>x</answer>\"}}"
}
frames() {
    "$bin/caravan-frames" --stdio --store "$work/store" --media-root "$media" "$@" 2>>"$work/log"
}
without_times() {
    sed 's/"times":{[^}]*},\{0,1\}//; s/,}$/}/'
}

head -c 9000 "$media/b-frames.mp4" >"$work/cut.mp4"
echo "no clip" >"$work/text.mp4"
printf '#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n%s\n#EXT-X-ENDLIST\n' "$media/field.ts" >"$work/list.m3u8"
{
    group clip video b-frames.mp4
    group missing video none.mp4
    group cut video "$work/cut.mp4"
    group text video "file://$work/text.mp4"
    group list video "$work/list.m3u8"
    group short video plain-%03d.png
    group both image alpha.png video file://b-frames.mp4 image plain-%03d.png
    group none
    group again video b-frames.mp4
} >"$work/in"
frames --workers 3 <"$work/in" >"$work/first"
[ "$(grep -o '^{"v":1,"id":"[a-z]*"' "$work/first" | tr -d '\n')" = "$(grep -o '"id":"[a-z]*"' "$work/in" | grep -v sample | sed 's/^/{"v":1,/' | tr -d '\n')" ] || fail "the order has changed"
[ "$(grep -c '"mine":\[1,{}\]' "$work/first")" = 9 ] || fail "an unknown field is lost"
expect_reason() {
    grep "\"id\":\"$1\"" "$work/first" | grep -q "\"quarantine\":{\"stage\":\"frames\",\"reason\":\"[^\"]*$2" || fail "$1: no reason like '$2': $(grep "\"id\":\"$1\"" "$work/first")"
}
expect_reason missing "none.mp4: No such file"
expect_reason cut "moov atom not found"
expect_reason text "text.mp4: cannot be opened"
expect_reason list "list.m3u8: it is a list of other files"
expect_reason short "the video has 1 frame, at least 2"
[ "$(grep -c '"quarantine":{' "$work/first")" = 5 ] || fail "expected the five groups with bad media in quarantine"

# The reason has the cause behind a long path, too.
long=$(printf '%0200d/' 1 2 3 4)
group long video "${long}none.mp4" | frames | grep -q '"reason":"[^"]*: No such file or directory"' || fail "the reason of a long path is cut"

# One worker and a new store give the same output.
"$bin/caravan-frames" --stdio --store "$work/other" --media-root "$media" --workers 1 <"$work/in" 2>>"$work/log" | without_times >"$work/second"
without_times <"$work/first" | cmp - "$work/second" || fail "the output depends on the number of workers"

# The subcommand shows what is in the group.
key=$(grep '"id":"clip"' "$work/first" | grep -o '"key":"[0-9a-f]*"' | cut -d'"' -f4)
[ "$("$bin/caravan" frames ls --store "$work/store" | wc -l)" = 3 ] || fail "expected one record for each medium"
size=$("$bin/caravan" frames export --store "$work/store" "$key" --raw | wc -c)
[ "$size" = $((6 * 280 * 392 * 3)) ] || fail "export --raw gave $size bytes"
"$bin/caravan" frames export --store "$work/store" "$key" --png "$work/sheet.png"
[ "$(head -c 4 "$work/sheet.png" | tail -c 3)" = PNG ] || fail "no contact sheet"
"$bin/caravan" frames show --store "$work/store" "${key:0:6}" | grep -q "timestamps  *0.000 0.583" || fail "show: no timestamps"
expect 65 "no frames under key" "$bin/caravan" frames show --store "$work/store" 00000000000000000000000000000000
expect 65 "nowhere: No such file" "$bin/caravan" frames ls --store "$work/nowhere"
expect 64 "store" "$bin/caravan" frames ls
expect 64 "min_frames" "$bin/caravan-frames" --stdio --min-frames 20 --max-frames 16

group three video three.mp4 | frames | grep -q '"frames":2,.*"timestamps":\[0,0.1666' || fail "a clip of three frames does not give two"

# A clip that is a directory of pictures, and a clip that is cut.
mkdir "$work/pictures"
for i in 1 2 3 4 5 6; do cp "$media/photo.jpg" "$work/pictures/0$i.jpg"; done
group pictures video "$work/pictures" | sed 's/"video","video"/"video","frame_rate":2,"start":0.5,"end":2,"video"/' | frames >"$work/pictures.out"
grep -q '"frames":4,.*"timestamps":\[0.5,1,1.5,2\]' "$work/pictures.out" || fail "a directory of pictures: $(cat "$work/pictures.out")"
group long video b-frames.mp4 | sed 's/"video","video"/"video","start":9,"video"/' | frames | grep -q '"quarantine":{.*no frame' || fail "a clip that is cut to nothing"

# media_outside: refuse. A path that leaves media_root, by .., as an absolute path or by a link, is quarantined; others are not.
mkdir -p "$work/root/clips" "$work/root/pictures"
cp "$media/three.mp4" "$work/root/clips/in.mp4"
ln -s "$media/three.mp4" "$work/root/out.mp4"
ln -s clips/in.mp4 "$work/root/linked.mp4"
ln -s "$media/photo.jpg" "$work/root/pictures/1.jpg"
{
    group in video clips/in.mp4
    group linked video linked.mp4
    group absolute video "$work/root/clips/in.mp4"
    group up video ../list.m3u8
    group far video "$media/b-frames.mp4"
    group out video out.mp4
    group pictures video pictures | sed 's/"video","video"/"video","frame_rate":2,"video"/'
    group missing video clips/none.mp4
    group nameless video /proc/self/fd/7
} >"$work/paths"
cp "$media/three.mp4" "$work/nameless.mp4"
exec 7<"$work/nameless.mp4" # the stage inherits it
rm "$work/nameless.mp4"
"$bin/caravan-frames" --stdio --store "$work/inside" --media-root "$work/root" --media-outside refuse <"$work/paths" >"$work/first" 2>>"$work/log"
exec 7<&-
for id in up far out pictures; do expect_reason $id "outside media_root"; done
for id in missing nameless; do expect_reason $id "No such file or directory"; done
[ "$(grep -c '"media":\[{' "$work/first")" = 3 ] || fail "media_outside refuses a clip inside: $(cat "$work/first")"
# What an earlier run decoded is refused all the same.
group far video "$media/b-frames.mp4" >"$work/far"
frames <"$work/far" | grep -q '"media":\[{' || fail "the default refuses a clip outside media_root"
"$bin/caravan-frames" --stdio --store "$work/store" --media-root "$work/root" --media-outside refuse <"$work/far" >"$work/first" 2>>"$work/log"
expect_reason far "outside media_root"

# A changed file is a new medium, although its name is the same.
cp "$media/b-frames.mp4" "$work/changing.mp4"
group a video "$work/changing.mp4" | frames | grep -q "$key" || fail "a file with equal content has a different key"
cp "$media/ten-bit.mkv" "$work/changing.mp4"
group a video "$work/changing.mp4" | frames | grep -q "$key" && fail "the old frames of a changed file were used"

# The store stays usable after its stage was killed several times.
for i in 1 2 3 4 5 6 7 8; do for name in b-frames.mp4 open.mkv hevc.mp4 hidden.webm field.ts; do group "$name-$i" video "$name"; done; done >"$work/many"
for i in 1 2 3; do
    "$bin/caravan-frames" --stdio --store "$work/killed" --media-root "$media" --fps "$i" <"$work/many" >/dev/null 2>&1 &
    sleep 0.1
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
done
"$bin/caravan-frames" --stdio --store "$work/killed" --media-root "$media" <"$work/many" 2>>"$work/log" >"$work/after"
[ "$(grep -c '"media":\[{' "$work/after")" = 40 ] || fail "the store is not usable after kill -9"

# The size limit holds.
"$bin/caravan-frames" --stdio --store "$work/small" --store-limit 2000000 --workers 1 --media-root "$media" <"$work/many" >/dev/null 2>>"$work/log"
kept=$("$bin/caravan" frames ls --store "$work/small" | awk '{ sum += $5 } END { print sum }')
[ "$kept" -le 2000000 ] && [ "$kept" -gt 1000000 ] || fail "the store holds $kept bytes"
