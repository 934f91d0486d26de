#!/usr/bin/env bash
# What make install puts into a directory works there, and make uninstall removes all of it. The manual pages have no
# mistakes, completion proposes what the programs take, and each compiled file is one short line.
. tests/e2e/common.sh
build=${BUILD:-build}
make() { env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD make --no-print-directory "$@"; }
install="BUILD=$build CUDA=0 DESTDIR=$work/root PREFIX=/usr LIBDIR=/usr/local/lib" # LIBDIR as compiled: other scripts run these programs
root=$work/root/usr

make $install install >"$work/log" 2>&1 || fail "make install: $(cat "$work/log")"
version=$("$bin/caravan" --version)
[ "$("$root/bin/caravan" --version)" = "$version" ] || fail "the installed program is not of version $version"
cmp pipelines/templates/default.txt "$root/share/caravan/pipelines/templates/default.txt"
[ -x "$root/share/caravan/pipelines/examples/consistency.py" ] || fail "an example cannot be run"
if grep "^ExecStart=/" "$root/share/caravan/pipelines/systemd/caravan@.service"; then fail "the unit is for one PREFIX alone"; fi
[ -f "$root/share/doc/caravan/REFERENCE.md" ] || fail "no documentation"

# ---- manual pages ----

for program in "$root"/bin/*; do
    page=$root/share/man/man1/${program##*/}.1
    [ -s "$page" ] || fail "no manual page of ${program##*/}"
    "$program" --help >"$work/help"
    if grep '.\{81\}' "$work/help"; then fail "$program --help is wider than 80 columns"; fi
    for option in $(grep -oE '^  --[a-z0-9-]+' "$work/help"); do
        grep -qF -- "\\fB${option//-/\\-}\\fR" "$page" || fail "$page: no $option"
    done
    if command -v man >/dev/null; then
        LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$page" >"$work/text" 2>"$work/err" || fail "$(cat "$work/err")"
        [ ! -s "$work/err" ] || fail "$page: $(cat "$work/err")"
    fi
done
for subcommand in $("$bin/caravan" --help | sed -nE 's/^  ([a-z-]+) .*/\1/p'); do
    if "$bin/caravan" "$subcommand" --help | grep '.\{81\}'; then fail "caravan $subcommand --help is wider than 80 columns"; fi
    grep -q "^.SS \"caravan ${subcommand//-/\\\\-}" "$root/share/man/man1/caravan.1" || fail "caravan(1): no $subcommand"
done
for variable in $(grep -oh 'CARAVAN_[A-Z]*' MANUAL.md | sort -u); do
    grep -q "^.B $variable$" "$root/share/man/man1/caravan.1" || fail "caravan(1): no $variable"
done
command -v man >/dev/null || echo "manual pages were not formatted: man is not installed"
expect 64 "there is no such program" "$bin/caravan" reference --man caravan-nothing

# ---- completion ----

# propose WORD...: what completion proposes for the last word.
propose() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _caravan "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s ' "${COMPREPLY[@]}"
}
. "$root/share/bash-completion/completions/caravan"
[ "$(propose caravan gr)" = "graph groups " ] || fail "subcommands: $(propose caravan gr)"
[ "$(propose caravan graph --t)" = "--text " ] || fail "options of a subcommand: $(propose caravan graph --t)"
[ "$(propose caravan groups se)" = "select " ] || fail "actions: $(propose caravan groups se)"
[ "$(propose caravan-rollout --max-n)" = "--max-new-tokens " ] || fail "options: $(propose caravan-rollout --max-n)"
[ "$(propose caravan-reward --method ca)" = "care " ] || fail "values: $(propose caravan-reward --method ca)"
[ "$(propose caravan-source --data pipelines/tem)" = "pipelines/templates " ] || fail "files"
[ "$(propose caravan run pipelines/war)" = "pipelines/warm-up.yaml " ] || fail "operands"
[ "$(readlink "$root/share/bash-completion/completions/caravan-reward")" = caravan ] || fail "no link for caravan-reward"

# zsh and fish complete lines themselves; in zsh, functions that print their words take the place of the programs.
cat >"$work/.zshrc" <<'END'
PS1= fpath=($completions $fpath)
autoload -Uz compinit
compinit -u -d $ZDOTDIR/dump
for program in caravan caravan-reward; do functions[$program]='print -r -- "<$*>"'; done
print ready
END
cat >"$work/complete.zsh" <<'END'
zmodload zsh/zpty
zpty shell zsh -d -i
zpty -r shell out '*ready*'
zpty -w shell "$1"
zpty -r shell out '*<*>*'
print -r -- "${${out##*<}%%>*}"
END
# completed LINE WORDS: zsh must complete the line, which has tabulators, to these words.
completed() {
    got=$(cd "$root" && completions=$root/share/zsh/site-functions ZDOTDIR=$work timeout 120 zsh "$work/complete.zsh" "$1") || true
    [ "$got" = "$2" ] || fail "zsh completed '$1' to '$got'"
}
if command -v zsh >/dev/null; then
    completed $'caravan grap\t--te\t' 'graph --text'
    completed $'caravan groups sele\t' 'groups select'
    completed $'caravan-reward --meth\tcar\t' '--method=care'
    completed $'caravan run sha\t' 'run share'
else
    echo "completion was not tried in zsh, which is not installed"
fi
if command -v fish >/dev/null; then
    fish() { PATH=$root/bin:$PATH HOME=$work XDG_DATA_DIRS=$root/share command fish -c "complete -C '$1'" | cut -f 1 | paste -sd ' '; }
    [ "$(fish 'caravan gr')" = "graph groups" ] || fail "fish: $(fish 'caravan gr')"
    [ "$(fish 'caravan groups se')" = select ] || fail "fish: $(fish 'caravan groups se')"
    [ "$(fish 'caravan-reward --method ca')" = care ] || fail "fish: $(fish 'caravan-reward --method ca')"
    [ "$(fish 'caravan-source --media-r')" = --media-root ] || fail "fish: $(fish 'caravan-source --media-r')"
else
    echo "completion was not tried in fish, which is not installed"
fi

# ---- uninstall ----

make $install uninstall >/dev/null
left=$(find "$work/root" ! -type d)
[ -z "$left" ] || fail "make uninstall left $left"

# ---- the Debian package ----

if command -v dpkg-shlibdeps >/dev/null; then
    make $install ZSHDIR=/usr/share/zsh/vendor-completions DESTDIR="$work/the package" install >/dev/null
    DEBEMAIL=somebody@debian.org tools/make-deb "$work/the package" 1.2.3 "$work/caravan.deb" >/dev/null
    dpkg-deb -f "$work/caravan.deb" Depends | grep -q 'libzmq5' || fail "the package does not need libzmq5"
    [ "$(dpkg-deb -f "$work/caravan.deb" Version)" = 1.2.3 ] || fail "the package is of another version"
    dpkg-deb -c "$work/caravan.deb" >"$work/list"
    for file in bin/caravan-optim share/man/man1/caravan.1.gz share/caravan/pipelines/warm-up.yaml \
        share/caravan/pipelines/miniature/start/model.safetensors share/fish/vendor_completions.d/caravan.fish; do
        grep -q " ./usr/$file$" "$work/list" || fail "the package has no $file"
    done
    if command -v lintian >/dev/null; then
        lintian --fail-on error,warning "$work/caravan.deb" >"$work/lintian" 2>&1 || fail "lintian: $(cat "$work/lintian")"
    fi
else
    echo "the Debian package was not made: dpkg-dev is not installed"
fi

# ---- the image's recipe ----

# What .dockerignore lets through is all that make deb needs, also in a directory whose name has a blank.
mkdir "$work/the context"
cp -r $(sed -n 's/^!//p' .dockerignore) "$work/the context"
make -C "$work/the context" -n deb >"$work/log" 2>&1 || fail "the image cannot be built: $(cat "$work/log")"
ln -s "$PWD/tests" "$work/the context/tests"
make -C "$work/the context" -n sanitize-thread >"$work/log" 2>&1 || fail "the tests cannot run there: $(tail -n 3 "$work/log")"
rm "$work/the context/tests"

# ---- root installs what another user has built ----

if [ "$(id -u)" = 0 ] && command -v git >/dev/null; then
    git -C "$work/the context" init -q
    git -C "$work/the context" add LICENSE
    git -C "$work/the context" -c user.name=a -c user.email=a@example.org commit -qm license
    chown -R 65534 "$work/the context"
    HOME=$work make -C "$work/the context" build/commit >/dev/null
    grep -qE '^[0-9a-f]{7,}' "$work/the context/build/commit" || fail "the commit: $(cat "$work/the context/build/commit")"
fi

# ---- missing packages ----

# A machine without them, with programs that say how they were called. sudo gives no variables on.
mkdir "$work/fake"
fake() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/fake/$1"
    chmod +x "$work/fake/$1"
}
fake dpkg-query 'exit 1'
fake id 'echo 1000'
fake apt-get 'echo "apt-get $1 ${DEBIAN_FRONTEND:-asks}" >&2'
for tool in sh sed grep env; do ln -s "$(command -v $tool)" "$work/fake/$tool"; done
deps() { PATH=$work/fake sh tools/deps "$@"; }
expect 1 "missing packages: one g++; type: make deps, or: su - -c 'apt-get install one g++'" deps --check one g++
expect 1 "^type: su - -c 'apt-get install one g++'" deps --install one g++
fake sudo '[ "$1" != -n ] || exit 1'
expect 1 "^type: sudo apt-get install one" deps --install one
fake sudo '[ "$1" != -n ] || shift; exec env -i "PATH=$PATH" "$@"'
fake true ''
expect 0 "^apt-get install noninteractive" deps --install one
fake id 'echo 0'
expect 0 "^apt-get install noninteractive" deps --install one
expect 1 "make deps, or: apt-get install one" deps --check one

# ---- what make prints ----

object=shared/base/clock.o
mkdir -p "$work/build/deb/root/vendor_completions.d" # as make deb leaves it
short=$(make -B BUILD="$work/build" "$work/build/$object" | tail -1)
[ "$short" = "CC   $object" ] || fail "make printed '$short'"
make -B V=1 BUILD="$work/build" "$work/build/$object" | grep -q -- '-std=c17' || fail "V=1 does not print the command"

make help >"$work/targets"
for target in $(sed -nE 's/^([^ :]+):.* ## .*/\1/p' Makefile make/*.mk); do
    grep -q "^$target " "$work/targets" || fail "make help does not list $target"
done

# ---- another LIBDIR ----

# compile LIBDIR: prints what make prints, and fails unless the object file has the directory.
compile() {
    make BUILD="$work/build" LIBDIR="$1" "$work/build/kernels/ops.o"
    grep -qF "$1" "$work/build/kernels/ops.o" || fail "LIBDIR=$1 is not compiled in"
}
compile /opt/first >/dev/null
compile /opt/first | grep -q '^CC' && fail "the same LIBDIR compiles again"
compile /opt/second >/dev/null
